// In libortrain, which is initialized after everything that it needs: the environment has been read.

extern "C" void ortrain_restore_environment();

namespace {

[[maybe_unused]] const bool restored = (ortrain_restore_environment(), true);

}  // namespace
