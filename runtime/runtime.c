/*
 * runtime.c: the public face of the runtime: argument checks, and the way to the policy.
 */
#include <pleat/runtime.h>

void pleat_runtime_destroy(pleat_runtime *runtime)
{
    (void)runtime;
}
