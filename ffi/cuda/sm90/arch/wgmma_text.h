// SPDX-License-Identifier: Apache-2.0
// The registers of D in the text of a wgmma instruction, JCB_TEXT_n, and as its
// operands, JCB_D_n, by their number n. Only for files that define
// instructions.
#pragma once

#define JCB_TEXT_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define JCB_TEXT_16 \
  JCB_TEXT_8        \
  ", %8, %9, %10, %11, %12, %13, %14, %15"
#define JCB_TEXT_32                                                \
  JCB_TEXT_16                                                      \
  ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, " \
  "%28, %29, %30, %31"
#define JCB_TEXT_48                                                \
  JCB_TEXT_32                                                      \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, " \
  "%44, %45, %46, %47"
#define JCB_TEXT_64                                                \
  JCB_TEXT_48                                                      \
  ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, " \
  "%60, %61, %62, %63"
#define JCB_TEXT_80                                                \
  JCB_TEXT_64                                                      \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, " \
  "%76, %77, %78, %79"
#define JCB_TEXT_96                                                \
  JCB_TEXT_64                                                      \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, " \
  "%76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, "   \
  "%88, %89, %90, %91, %92, %93, %94, %95"
#define JCB_TEXT_112                                                 \
  JCB_TEXT_96                                                        \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, " \
  "%107, %108, %109, %110, %111"
#define JCB_TEXT_116 \
  JCB_TEXT_112       \
  ", %112, %113, %114, %115"
#define JCB_TEXT_128                                               \
  JCB_TEXT_112                                                     \
  ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, " \
  "%122, %123, %124, %125, %126, %127"

#define JCB_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define JCB_D16(i) JCB_D4(i), JCB_D4(i + 4), JCB_D4(i + 8), JCB_D4(i + 12)
#define JCB_D_8 JCB_D4(0), JCB_D4(4)
#define JCB_D_16 JCB_D16(0)
#define JCB_D_32 JCB_D_16, JCB_D16(16)
#define JCB_D_48 JCB_D_32, JCB_D16(32)
#define JCB_D_64 JCB_D_48, JCB_D16(48)
#define JCB_D_80 JCB_D_64, JCB_D16(64)
#define JCB_D_96 JCB_D_64, JCB_D16(64), JCB_D16(80)
#define JCB_D_112 JCB_D_96, JCB_D16(96)
#define JCB_D_116 JCB_D_112, JCB_D4(112)
#define JCB_D_128 JCB_D_112, JCB_D16(112)
