// Arenas, and allocators that an environment shares. Intermediate values are always in memory that sessions
// plan themselves, so the settings of an arena are checked and kept, and have no effect.
#include <algorithm>
#include <array>

#include "capi/generated/bodies.h"
#include "capi/handles.h"

namespace ortrain::capi {
namespace {

// A device has one allocator, whatever kind of allocator a program asks for.
bool same_place(const OrtMemoryInfo& a, const OrtMemoryInfo& b) { return a.name == b.name && a.id == b.id; }

OrtAllocator* shared_allocator(const OrtEnv& env, const OrtMemoryInfo& info) {
  for (OrtAllocator* allocator : env.allocators) {
    const OrtMemoryInfo* own = allocator->Info(allocator);
    if (own && same_place(*own, info)) return allocator;
  }
  return nullptr;
}

// Whether there was an allocator for that memory.
bool forget(OrtEnv& env, const OrtMemoryInfo& info) {
  const size_t made =
      std::erase_if(env.shared_memory, [&](const OrtMemoryInfo& one) { return same_place(one, info); });
  OrtAllocator* given = shared_allocator(env, info);
  return std::erase(env.allocators, given) + made > 0;
}

constexpr std::array<std::string_view, 6> kKeys = {"arena_extend_strategy",
                                                   "initial_chunk_size_bytes",
                                                   "initial_growth_chunk_size_bytes",
                                                   "max_dead_bytes_per_chunk",
                                                   "max_mem",
                                                   "max_power_of_two_extend_bytes"};

void check_strategy(int64_t strategy) {
  require(strategy >= -1 && strategy <= 1, ErrorCode::kInvalidArgument, "arena_extend_strategy is ", strategy,
          ", expected -1, 0 or 1");
}

}  // namespace

OrtAllocator* registered_allocator(const OrtEnv& env) { return shared_allocator(env, cpu_memory()); }

OrtAllocator* allocator_of(const OrtEnv& env, const SessionOptions& settings) {
  const auto shares = settings.config.find("session.use_env_allocators");
  OrtAllocator* given = nullptr;
  if (shares != settings.config.end() && shares->second == "1") given = registered_allocator(env);
  if (given != nullptr) return given;
  return settings.cpu_memory_arena ? arena_allocator() : default_allocator();
}

void CreateArenaCfg(size_t, int arena_extend_strategy, int initial_chunk_size_bytes,
                    int max_dead_bytes_per_chunk, OrtArenaCfg** out) {
  check_strategy(arena_extend_strategy);
  require(initial_chunk_size_bytes >= -1 && max_dead_bytes_per_chunk >= -1, ErrorCode::kInvalidArgument,
          "expected sizes, or -1 for the default, found ", initial_chunk_size_bytes, " and ",
          max_dead_bytes_per_chunk);
  *out = new OrtArenaCfg;
}

void CreateArenaCfgV2(const char* const* arena_config_keys, const size_t* arena_config_values,
                      size_t num_keys, OrtArenaCfg** out) {
  for (size_t i = 0; i < num_keys; ++i) {
    require(std::find(kKeys.begin(), kKeys.end(), arena_config_keys[i]) != kKeys.end(),
            ErrorCode::kInvalidArgument, "an arena has no setting ", arena_config_keys[i]);
    if (std::string_view(arena_config_keys[i]) == "arena_extend_strategy")
      check_strategy(static_cast<int64_t>(arena_config_values[i]));
  }
  *out = new OrtArenaCfg;
}

void CreateAndRegisterAllocator(OrtEnv* env, const OrtMemoryInfo* mem_info, const OrtArenaCfg*) {
  forget(*env, *mem_info);
  env->shared_memory.push_back(*mem_info);
}

void CreateAndRegisterAllocatorV2(OrtEnv* env, const char* provider_type, const OrtMemoryInfo* mem_info,
                                  const OrtArenaCfg* arena_cfg, const char* const*, const char* const*,
                                  size_t) {
  require(provider_names()[0] == provider_type, ErrorCode::kInvalidArgument, "there is no provider ",
          provider_type, ", available: CPUExecutionProvider");
  CreateAndRegisterAllocator(env, mem_info, arena_cfg);
}

void RegisterAllocator(OrtEnv* env, OrtAllocator* allocator) {
  require(allocator->Info != nullptr && allocator->Info(allocator) != nullptr, ErrorCode::kInvalidArgument,
          "the allocator does not describe its memory, expected a function Info");
  const OrtMemoryInfo& info = *allocator->Info(allocator);
  require(info.type != OrtArenaAllocator, ErrorCode::kInvalidArgument,
          "the allocator is an arena, expected one that allocates from the device each time");
  forget(*env, info);
  env->allocators.push_back(allocator);
}

void UnregisterAllocator(OrtEnv* env, const OrtMemoryInfo* mem_info) {
  require(forget(*env, *mem_info), ErrorCode::kInvalidArgument,
          "the environment has no allocator for that memory");
}

void GetSharedAllocator(OrtEnv* env, const OrtMemoryInfo* mem_info, OrtAllocator** allocator) {
  *allocator = shared_allocator(*env, *mem_info);
  if (*allocator == nullptr && mem_info->name == cpu_memory().name) *allocator = default_allocator();
}

}  // namespace ortrain::capi
