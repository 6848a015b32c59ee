// SPDX-License-Identifier: Apache-2.0
// What was worked out once for a call's attributes, for the life of the
// process. XLA runs Initialize before every execution of a program, so for a
// small convolution it counts as much as the launch.
#pragma once

#include <mutex>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <type_traits>
#include <unordered_map>
#include <utility>

#include "cuda/common/left_out.h"

namespace jax_convbatch {

// Bytes that tell calls apart.
class CallKey {
 public:
  CallKey() {
    bytes_.reserve(512);
    Add(LeftOut());
  }

  template <typename T>
  CallKey& Add(const T& value) {
    static_assert(std::has_unique_object_representations_v<T>);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
    return *this;
  }

  CallKey& Add(std::string_view text) {
    Add(text.size());
    bytes_.append(text);
    return *this;
  }

  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

// Safe to use from several threads.
template <typename Value>
class Memo {
 public:
  // The value for a key, from make() where there is none yet. Two threads may
  // both make it.
  template <typename Make>
  Value Get(const CallKey& key, Make&& make) {
    {
      const std::shared_lock<std::shared_mutex> lock(mutex_);
      const auto it = values_.find(key.bytes());
      if (it != values_.end()) return it->second;
    }
    Value value = make();
    const std::unique_lock<std::shared_mutex> lock(mutex_);
    return values_.emplace(key.bytes(), std::move(value)).first->second;
  }

  bool Has(const CallKey& key) {
    const std::shared_lock<std::shared_mutex> lock(mutex_);
    return values_.count(key.bytes()) > 0;
  }

 private:
  std::shared_mutex mutex_;
  std::unordered_map<std::string, Value> values_;
};

// Never destroyed: other threads may still run when static destructors do.
template <typename Value>
Memo<Value>& ProcessMemo() {
  static auto* const memo = new Memo<Value>;
  return *memo;
}

// What prepare() returns, an ffi::Error, unless it succeeded for the key
// before: then at once. Of each `Tag`, a type, keys are apart.
template <typename Tag, typename Prepare>
auto PrepareOnce(const CallKey& key, Prepare&& prepare) {
  struct Nothing {};
  auto& prepared = ProcessMemo<Nothing>();
  using Error = decltype(prepare());
  if (prepared.Has(key)) return Error::Success();
  Error error = prepare();
  if (error.success()) prepared.Get(key, [] { return Nothing(); });
  return error;
}

}  // namespace jax_convbatch
