// From version 3 on, Catch2 has its main in a library; version 2 requires one file that defines it.
#if __has_include(<catch2/catch_all.hpp>)
#else
#define CATCH_CONFIG_MAIN
#include <catch2/catch.hpp>
#endif
