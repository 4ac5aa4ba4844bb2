// The implementations of operators on the CPU that have several, in order of preference. The first that
// applies is used. Operators with one kernel name it where they are defined (Kernels::cpu).
#include "op/implementation.h"

#include "backend/cpu/conv/conv_kernels.h"
#include "backend/cpu/conv/conv_transpose_kernels.h"
#include "backend/cpu/matmul/matmul_kernels.h"
#include "backend/cpu/matmul/mixed_product.h"
#include "backend/cpu/norm/batch_normalization_kernels.h"
#include "backend/cpu/pool/pool_kernels.h"
#include "op/session_domain.h"

namespace ortrain {
namespace {

// clang-format off
const RegisterImplementations registered(Device::kCpu, {
  {"", "Conv", {
    {"direct", direct_conv},
    {"channels last", channels_last_depthwise},
    {"depthwise", depthwise_conv},
    {"channels last", channels_last_conv},
    {"row-major", row_major_conv}}},
  {kMicrosoft, "FusedConv", {
    {"direct", direct_conv},
    {"channels last", channels_last_depthwise},
    {"depthwise", depthwise_conv},
    {"channels last", channels_last_conv},
    {"row-major", row_major_fused_conv}}},
  {kSessionDomain, "SeparableConv", {
    {"separable", separable_conv}}},
  {kMicrosoft, "ConvGrad", {
    {"channels last", channels_last_depthwise_grad},
    {"channels last", channels_last_conv_grad},
    {"row-major", static_cast<std::optional<Kernel> (*)(KernelContext&)>(row_major_conv_grad)}}},
  {"", "ConvTranspose", {
    {"channels last", channels_last_conv_transpose},
    {"row-major", row_major_conv_transpose}}},
  {kMicrosoft, "ConvTransposeGrad", {
    {"channels last", channels_last_conv_transpose_grad},
    {"row-major", static_cast<std::optional<Kernel> (*)(KernelContext&)>(row_major_conv_transpose_grad)}}},
  {"", "MaxPool", {
    {"channels last", channels_last_max_pool},
    {"row-major", row_major_max_pool}}},
  // Follows the choice made for its MaxPool, even if inputs are constant.
  {"", "MaxPoolGrad", {
    {"channels last", channels_last_max_pool_grad},
    {"row-major", row_major_max_pool_grad}}},
  {"", "AveragePool", {
    {"channels last", channels_last_average_pool},
    {"row-major", row_major_average_pool}}},
  {"", "AveragePoolGrad", {
    {"channels last", channels_last_average_pool_grad},
    {"row-major", row_major_average_pool_grad}}},
  {"", "GlobalAveragePool", {
    {"channels last", channels_last_global_average_pool},
    {"row-major", row_major_global_average_pool}}},
  {"", "GlobalMaxPool", {
    {"channels last", channels_last_global_max_pool},
    {"row-major", row_major_global_max_pool}}},
  {"", "BatchNormalization", {
    {"channels last", channels_last_batch_normalization},
    {"row-major", row_major_batch_normalization}}},
  {kMicrosoft, "BatchNormInternal", {
    {"channels last", channels_last_batch_normalization},
    {"row-major", row_major_batch_normalization}}},
  {kMicrosoft, "BatchNormalizationGrad", {
    {"channels last", channels_last_batch_normalization_grad},
    {"row-major", row_major_batch_normalization_grad}}},
  {"", "MatMul", {
    {"mixed precision", mixed_matmul},
    {"plain", plain_matmul}}},
  {kMicrosoft, "FusedMatMul", {
    {"mixed precision", mixed_matmul},
    {"plain", plain_matmul}}},
  {"", "Gemm", {
    {"mixed precision", mixed_gemm},
    {"plain", plain_gemm}}},
  {kSessionDomain, "FusedProduct", {
    {"mixed precision", mixed_fused_product},
    {"plain", plain_fused_product}}},
});
// clang-format on

}  // namespace

}  // namespace ortrain
