/* Functions and data that glibc 2.28 lacks and a newer libstdc++.a uses. They are linked
   where libraries are asked for in old versions (old_libraries.py) and are hidden. */

#define HIDDEN __attribute__((visibility("hidden")))

/* 2.32: may be false where there is one thread: then it only costs atomic operations. */
HIDDEN char __libc_single_threaded = 0;

/* 2.38: with binary numbers such as 0b101, which no number here is. The names are those
   of the linker: newer headers call strtol so, too. */
#define OLDER(type, name)                                              \
  type Old_##name(const char *, char **, int) __asm__(#name);          \
  HIDDEN type New_##name(const char *, char **, int)                   \
      __asm__("__isoc23_" #name);                                      \
  type New_##name(const char *text, char **end, int base) {            \
    return Old_##name(text, end, base);                                \
  }
OLDER(long, strtol)
OLDER(unsigned long, strtoul)
OLDER(long long, strtoll)
OLDER(unsigned long long, strtoull)
