// Errors as values: nothing in the core throws on purpose. The bindings turn a Status into a Python exception.
#pragma once

#include <string>
#include <utility>

namespace octavo {

enum class StatusCode {
  kOk,
  kInvalid,   // an argument is wrong: ValueError
  kModel,     // the model needs something this core lacks: UnsupportedArchitecture
  kCapacity,  // the system gave no memory: CapacityError
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}
  static Status invalid(std::string message) { return {StatusCode::kInvalid, std::move(message)}; }
  static Status model(std::string message) { return {StatusCode::kModel, std::move(message)}; }
  static Status capacity(std::string message) { return {StatusCode::kCapacity, std::move(message)}; }

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

}  // namespace octavo
