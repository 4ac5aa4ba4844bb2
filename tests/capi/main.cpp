// Catch2 has its main in a library from version 3 on; version 2 wants one file that makes it.
#if __has_include(<catch2/catch_all.hpp>)
#else
#define CATCH_CONFIG_MAIN
#include <catch2/catch.hpp>
#endif
