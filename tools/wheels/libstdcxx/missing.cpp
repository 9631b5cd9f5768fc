/*
 * missing.cpp: what headers of GCC 12 call and the libstdc++.so.6 of older systems lacks. It stays inside the
 * shared object.
 */
#include <new>

namespace std
{

__attribute__((visibility("hidden"))) void __throw_bad_array_new_length()
{
    throw bad_array_new_length();
}

} // namespace std
