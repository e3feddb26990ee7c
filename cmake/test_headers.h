// source_headers.h and doctest, for the test executables.
#pragma once
#include "source_headers.h"
#include <doctest/doctest.h>
