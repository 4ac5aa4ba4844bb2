// The metadata of models, and pairs of keys and values.
#include <memory>

#include "capi/generated/bodies.h"
#include "capi/handles.h"

void OrtKeyValuePairs::changed() {
  keys.clear();
  values.clear();
  for (const auto& [key, value] : entries) {
    keys.push_back(key.c_str());
    values.push_back(value.c_str());
  }
}

namespace ortrain::capi {

void SessionGetModelMetadata(const OrtSession* session, OrtModelMetadata** out) {
  const Model& model = session->model();
  *out = new OrtModelMetadata{model.producer_name, model.graph.name, session->notes().graph_description,
                              model.domain,        model.doc_string, model.model_version,
                              model.metadata};
}

void ModelMetadataGetProducerName(const OrtModelMetadata* model_metadata, OrtAllocator* allocator,
                                  char** value) {
  *value = copy_text(allocator, model_metadata->producer);
}
void ModelMetadataGetGraphName(const OrtModelMetadata* model_metadata, OrtAllocator* allocator,
                               char** value) {
  *value = copy_text(allocator, model_metadata->graph_name);
}
void ModelMetadataGetDomain(const OrtModelMetadata* model_metadata, OrtAllocator* allocator, char** value) {
  *value = copy_text(allocator, model_metadata->domain);
}
void ModelMetadataGetDescription(const OrtModelMetadata* model_metadata, OrtAllocator* allocator,
                                 char** value) {
  *value = copy_text(allocator, model_metadata->description);
}
void ModelMetadataGetGraphDescription(const OrtModelMetadata* model_metadata, OrtAllocator* allocator,
                                      char** value) {
  *value = copy_text(allocator, model_metadata->graph_description);
}
void ModelMetadataGetVersion(const OrtModelMetadata* model_metadata, int64_t* value) {
  *value = model_metadata->version;
}

void ModelMetadataLookupCustomMetadataMap(const OrtModelMetadata* model_metadata, OrtAllocator* allocator,
                                          const char* key, char** value) {
  const auto found = model_metadata->custom.find(key);
  *value = found == model_metadata->custom.end() ? nullptr : copy_text(allocator, found->second);
}

void ModelMetadataGetCustomMetadataMapKeys(const OrtModelMetadata* model_metadata, OrtAllocator* allocator,
                                           char*** keys, int64_t* num_keys) {
  const auto& custom = model_metadata->custom;
  *keys = nullptr;
  *num_keys = static_cast<int64_t>(custom.size());
  if (custom.empty()) return;
  const auto free = [allocator](void* p) { allocator->Free(allocator, p); };
  std::vector<std::unique_ptr<char, decltype(free)>> made;
  for (const auto& [key, value] : custom) made.emplace_back(copy_text(allocator, key), free);
  *keys = static_cast<char**>(allocate(allocator, custom.size() * sizeof(char*)));
  for (size_t i = 0; i < made.size(); ++i) (*keys)[i] = made[i].release();
}

void CreateKeyValuePairs(OrtKeyValuePairs** out) {
  if (out == nullptr) return;
  *out = nullptr;
  *out = new OrtKeyValuePairs;
}
void AddKeyValuePair(OrtKeyValuePairs* kvps, const char* key, const char* value) {
  if (kvps == nullptr || key == nullptr || *key == '\0' || value == nullptr) return;
  kvps->entries[key] = value;
  kvps->changed();
}
const char* GetKeyValue(const OrtKeyValuePairs* kvps, const char* key) {
  if (kvps == nullptr || key == nullptr) return nullptr;
  const auto found = kvps->entries.find(key);
  return found == kvps->entries.end() ? nullptr : found->second.c_str();
}
void GetKeyValuePairs(const OrtKeyValuePairs* kvps, const char* const** keys, const char* const** values,
                      size_t* num_entries) {
  if (kvps == nullptr || keys == nullptr || values == nullptr || num_entries == nullptr) return;
  *keys = kvps->keys.data();
  *values = kvps->values.data();
  *num_entries = kvps->keys.size();
}
void RemoveKeyValuePair(OrtKeyValuePairs* kvps, const char* key) {
  if (kvps == nullptr || key == nullptr) return;
  kvps->entries.erase(key);
  kvps->changed();
}

}  // namespace ortrain::capi
