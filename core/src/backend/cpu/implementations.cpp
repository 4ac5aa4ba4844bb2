// The implementations of operators on the CPU that have several, in order of preference. The first that
// applies is used. Operators with one kernel name it where they are defined (Kernels::cpu).
//
// This is the only source file that knows which libraries the build has.
#include "op/implementation.h"

#include "backend/cpu/channels_last.h"
#include "backend/cpu/conv/conv_kernels.h"
#include "backend/cpu/conv/conv_transpose_kernels.h"
#include "backend/cpu/kernel_library.h"
#include "backend/cpu/matmul/matmul_kernels.h"
#include "backend/cpu/matmul/mixed_product.h"
#include "backend/cpu/norm/batch_normalization_kernels.h"
#include "backend/cpu/pool/pool_kernels.h"
#include "op/session_domain.h"

#if ORTRAIN_ONEDNN
#include "backend/cpu/onednn/kernels.h"
#define ONEDNN(...) {"onednn", __VA_ARGS__},
// oneDNN has layouts of its own.
#define CHANNELS_LAST(...)
#define MIXED(...)
#else
#define ONEDNN(...)
#define MIXED(...) {"mixed precision", kAlways, __VA_ARGS__},
#define CHANNELS_LAST(...) {"channels last", kAlways, __VA_ARGS__},
#endif

namespace ortrain {
namespace {

#if ORTRAIN_ONEDNN
bool suits(const KernelContext& c) { return suits_onednn(c); }
bool is_float(const KernelContext& c) { return c.dtype(0) == DType::kFloat; }
#endif
constexpr auto kAlways = nullptr;

// clang-format off
const RegisterImplementations registered(Device::kCpu, {
  {"", "Conv", {
    {"direct", kAlways, direct_conv},
    ONEDNN(suits, reported<onednn_conv>)
    CHANNELS_LAST(channels_last_depthwise)
    {"depthwise", kAlways, depthwise_conv},
    CHANNELS_LAST(channels_last_conv)
    {"portable", kAlways, portable_conv}}},
  {kMicrosoft, "FusedConv", {
    {"direct", kAlways, direct_conv},
    ONEDNN(suits, reported<onednn_fused_conv>)
    CHANNELS_LAST(channels_last_depthwise)
    {"depthwise", kAlways, depthwise_conv},
    CHANNELS_LAST(channels_last_conv)
    {"portable", kAlways, portable_fused_conv}}},
  {kSessionDomain, "SeparableConv", {
    {"separable", kAlways, separable_conv}}},
  {kMicrosoft, "ConvGrad", {
    ONEDNN(suits, reported<onednn_conv_grad>)
    CHANNELS_LAST(channels_last_depthwise_grad)
    CHANNELS_LAST(channels_last_conv_grad)
    {"portable", kAlways, static_cast<std::optional<Kernel> (*)(KernelContext&)>(portable_conv_grad)}}},
  {"", "ConvTranspose", {
    ONEDNN(suits, reported<onednn_conv_transpose>)
    CHANNELS_LAST(channels_last_conv_transpose)
    {"portable", kAlways, portable_conv_transpose}}},
  {kMicrosoft, "ConvTransposeGrad", {
    ONEDNN(suits, reported<onednn_conv_transpose_grad>)
    CHANNELS_LAST(channels_last_conv_transpose_grad)
    {"portable", kAlways, static_cast<std::optional<Kernel> (*)(KernelContext&)>(portable_conv_transpose_grad)}}},
  {"", "MaxPool", {
    ONEDNN(suits, reported<onednn_max_pool>)
    CHANNELS_LAST(channels_last_max_pool)
    {"portable", kAlways, portable_max_pool}}},
  // Follows the choice made for its MaxPool, even if inputs are constant.
  {"", "MaxPoolGrad", {
    ONEDNN(kAlways, reported<onednn_max_pool_grad>)
    CHANNELS_LAST(channels_last_max_pool_grad)
    {"portable", kAlways, portable_max_pool_grad}}},
  {"", "AveragePool", {
    ONEDNN(suits, reported<onednn_average_pool>)
    CHANNELS_LAST(channels_last_average_pool)
    {"portable", kAlways, portable_average_pool}}},
  {"", "AveragePoolGrad", {
    ONEDNN(suits, reported<onednn_average_pool_grad>)
    CHANNELS_LAST(channels_last_average_pool_grad)
    {"portable", kAlways, portable_average_pool_grad}}},
  {"", "GlobalAveragePool", {
    ONEDNN(suits, reported<onednn_global_average_pool>)
    CHANNELS_LAST(channels_last_global_average_pool)
    {"portable", kAlways, portable_global_average_pool}}},
  {"", "GlobalMaxPool", {
    CHANNELS_LAST(channels_last_global_max_pool)
    {"portable", kAlways, portable_global_max_pool}}},
  {"", "BatchNormalization", {
    ONEDNN(suits, reported<onednn_batch_normalization>)
    CHANNELS_LAST(channels_last_batch_normalization)
    {"portable", kAlways, portable_batch_normalization}}},
  {kMicrosoft, "BatchNormInternal", {
    ONEDNN(suits, reported<onednn_batch_normalization>)
    CHANNELS_LAST(channels_last_batch_normalization)
    {"portable", kAlways, portable_batch_normalization}}},
  {kMicrosoft, "BatchNormalizationGrad", {
    ONEDNN(suits, reported<onednn_batch_normalization_grad>)
    CHANNELS_LAST(channels_last_batch_normalization_grad)
    {"portable", kAlways, portable_batch_normalization_grad}}},
  {"", "MatMul", {
    ONEDNN(is_float, reported<onednn_matmul>)
    MIXED(mixed_matmul)
    {"portable", kAlways, portable_matmul}}},
  {kMicrosoft, "FusedMatMul", {
    ONEDNN(is_float, reported<onednn_matmul>)
    MIXED(mixed_matmul)
    {"portable", kAlways, portable_matmul}}},
  {"", "Gemm", {
    ONEDNN(is_float, reported<onednn_gemm>)
    MIXED(mixed_gemm)
    {"portable", kAlways, portable_gemm}}},
  {kSessionDomain, "FusedProduct", {
    ONEDNN(is_float, reported<onednn_fused_product>)
    MIXED(mixed_fused_product)
    {"portable", kAlways, portable_fused_product}}},
});
// clang-format on

}  // namespace

const KernelLibrary* kernel_library() {
#if ORTRAIN_ONEDNN
  return &kOnednn;
#else
  return nullptr;
#endif
}

LayoutPtr weights_order([[maybe_unused]] const Node& node, const Shape& w) {
#if ORTRAIN_ONEDNN
  return onednn_weights_order(node, w);
#else
  return channels_last(w);
#endif
}

}  // namespace ortrain
