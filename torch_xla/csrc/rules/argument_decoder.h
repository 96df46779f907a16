// Decodes a node's arguments for the dispatcher.
#pragma once

#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "ir/attributes.h"
#include "ir/op.h"

namespace torch_xla::rules {

/// Decodes arguments in the order of the schema. `Operands` supplies the next operand: `at::Tensor
/// Tensor()` and `c10::Scalar Scalar()`.
template <typename Operands>
class ArgumentDecoder {
 public:
  ArgumentDecoder(Operands operands, const ir::Words& attributes)
      : operands_(std::move(operands)), words_(attributes) {}

  c10::IValue Argument(ir::ArgKind kind) {
    using ir::ArgKind;
    switch (kind) {
      case ArgKind::kTensor:
        return operands_.Tensor();
      case ArgKind::kScalar:
        return operands_.Scalar();
      case ArgKind::kOptionalTensor:
        return Optional(ArgKind::kTensor);
      case ArgKind::kOptionalScalar:
        return Optional(ArgKind::kScalar);
      case ArgKind::kTensorList: {
        c10::List<at::Tensor> list;
        for (int64_t n = words_.Int(); n > 0; --n) list.push_back(operands_.Tensor());
        return list;
      }
      case ArgKind::kScalarList: {
        c10::impl::GenericList list(c10::AnyType::get());
        for (int64_t n = words_.Int(); n > 0; --n) list.push_back(operands_.Scalar());
        return list;
      }
      case ArgKind::kOptionalTensorList: {
        c10::List<std::optional<at::Tensor>> list;
        for (int64_t n = words_.Int(); n > 0; --n) {
          if (words_.Bool()) {
            list.push_back(operands_.Tensor());
          } else {
            list.push_back(std::nullopt);
          }
        }
        return list;
      }
      case ArgKind::kConstantScalar:
        return words_.Scalar();
      case ArgKind::kOptionalConstantScalar:
        return Optional(ArgKind::kConstantScalar);
      case ArgKind::kInt:
        return words_.Int();
      case ArgKind::kOptionalInt:
        return Optional(ArgKind::kInt);
      case ArgKind::kIntList:
        return words_.IntList();
      case ArgKind::kOptionalIntList:
        return Optional(ArgKind::kIntList);
      case ArgKind::kBool:
        return words_.Bool();
      case ArgKind::kOptionalBool:
        return Optional(ArgKind::kBool);
      case ArgKind::kBoolList: {
        c10::List<bool> list;
        for (int64_t value : words_.IntList()) list.push_back(value != 0);
        return list;
      }
      case ArgKind::kDouble:
        return words_.Double();
      case ArgKind::kOptionalDouble:
        return Optional(ArgKind::kDouble);
      case ArgKind::kDoubleList: {
        c10::List<double> list;
        for (double value : words_.DoubleList()) list.push_back(value);
        return list;
      }
      case ArgKind::kOptionalDoubleList:
        return Optional(ArgKind::kDoubleList);
      case ArgKind::kDtype:
        return static_cast<c10::ScalarType>(words_.Int());
      case ArgKind::kOptionalDtype:
        return Optional(ArgKind::kDtype);
      case ArgKind::kString:
        return std::string(words_.String());
      case ArgKind::kOptionalString:
        return Optional(ArgKind::kString);
      case ArgKind::kIgnored:
        return {};
    }
    return {};
  }

 private:
  c10::IValue Optional(ir::ArgKind kind) { return words_.Bool() ? Argument(kind) : c10::IValue(); }

  Operands operands_;
  ir::AttributeReader words_;
};

}  // namespace torch_xla::rules
