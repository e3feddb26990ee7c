// source_headers.h and doctest, for the test executables.
#pragma once
#include <doctest/doctest.h>
#include "source_headers.h"
