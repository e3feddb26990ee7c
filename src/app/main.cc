// The program: parse, dispatch, exit code. Everything else is in app/.
#include "app/dispatch.h"

int main(int argc, char** argv) {
  return penstock::dispatch(argc, argv);
}
