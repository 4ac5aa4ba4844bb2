// Operators with variants, such as Resize and Upsample: their rules and kernel makers are functions of a
// context and of the variant, and are compiled once for all variants.
#pragma once

namespace ortrain {

// The function for one variant, as an operator registers it: {.shape = kVariant<shape, Form::kResize>}.
template <auto kFunction, auto... kOf>
inline constexpr auto kVariant = [](auto& context) { return kFunction(context, kOf...); };

}  // namespace ortrain
