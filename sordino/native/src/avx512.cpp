// The library for one instruction set. The build compiles this file alone, with the flags for it.
#include "interface.h"
