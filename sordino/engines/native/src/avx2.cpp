// The library for one instruction set: the build compiles this file, and no other, with the flags for it.
#include "interface.h"
