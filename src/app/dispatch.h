// Runs one command line and gives the process's exit code: 0, what the command returned, or the
// exit code of its error in the table of base/result.h. Errors go to stderr as one line.
// Concurrency: called once, by main.
#pragma once

namespace penstock {

int dispatch(int argc, const char* const* argv);

}  // namespace penstock
