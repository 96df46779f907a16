#include "stablehlo/builder.h"

#include <algorithm>
#include <utility>

#include "stablehlo/text.h"

namespace torch_xla::stablehlo {
namespace {

bool IsIdentifier(std::string_view name) {
  if (name.empty() || (name[0] >= '0' && name[0] <= '9')) return false;
  for (char c : name) {
    bool ok = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
              c == '_' || c == '.' || c == '$';
    if (!ok) return false;
  }
  return true;
}

OpKind KindOfOp(std::string_view name) {
  static constexpr std::string_view kDialect = "stablehlo.";
  if (!name.starts_with(kDialect)) return OpKind::kOther;
  name.remove_prefix(kDialect.size());
  switch (name[0]) {
    case 'c':
      return name == "custom_call" || name == "convolution" ? OpKind::kNeverFused : OpKind::kOther;
    case 'd':
      return name == "dynamic_update_slice" ? OpKind::kUpdate : OpKind::kOther;
    case 'r':
      return name == "reshape" ? OpKind::kReshape : OpKind::kOther;
    case 's':
      if (name == "sort") return OpKind::kNeverFused;
      return name == "slice" ? OpKind::kSlice : OpKind::kOther;
    default:
      return OpKind::kOther;
  }
}

std::string Symbol(std::string_view name) {
  return IsIdentifier(name) ? Cat("@", name) : Cat("@", Quoted(name.empty() ? "main" : name));
}

void AppendAttributes(std::string& attributes, std::string_view more) {
  if (more.empty()) return;
  if (!attributes.empty()) attributes += ", ";
  attributes += more;
}

void AppendTypeList(std::string& out, std::span<const Type> types) {
  if (types.size() == 1) {
    types[0].AppendTo(out);
    return;
  }
  out += '(';
  for (size_t i = 0; i < types.size(); ++i) {
    if (i > 0) out += ", ";
    types[i].AppendTo(out);
  }
  out += ')';
}

/// Restores the builder's state, even if the body of a region throws.
class Restore {
 public:
  Restore(size_t& isolation, std::string& location)
      : isolation_(isolation), location_(location), old_(isolation), old_location_(location) {}
  ~Restore() {
    isolation_ = old_;
    location_ = std::move(old_location_);
  }
  Restore(const Restore&) = delete;
  Restore& operator=(const Restore&) = delete;

 private:
  size_t& isolation_;
  std::string& location_;
  size_t old_;
  std::string old_location_;
};

}  // namespace

Builder& Value::builder() const {
  if (builder_ == nullptr) throw Error("stablehlo: an invalid value was used");
  return *builder_;
}

const Type& Value::type() const { return builder().values_[id_].type; }

int64_t Value::dim(int64_t i) const {
  const Dims& d = dims();
  int64_t rank = static_cast<int64_t>(d.size());
  int64_t at = i < 0 ? i + rank : i;
  if (at < 0 || at >= rank) {
    throw Error(Cat("stablehlo: no dimension ", i, " in ", type().ToString()));
  }
  return d[at];
}

Builder::Builder() { OpenBlock(); }

// ---- Blocks and values

void Builder::OpenBlock() { blocks_.push_back(Block{next_block_++, {}, {}}); }

Builder::Block Builder::CloseBlock() {
  Block block = std::move(blocks_.back());
  blocks_.pop_back();
  return block;
}

int Builder::NewValue(const Type& type, int number, int result, bool argument) {
  // XLA computes sizes in bytes without a check for overflow. It also does so for arrays without
  // elements, which it lays out dimension by dimension.
  int64_t bytes = type.token ? 0 : static_cast<int64_t>(runtime::ByteWidth(type.element));
  bool overflows = false;
  for (int64_t dim : type.dims) {
    overflows |= __builtin_mul_overflow(bytes, std::max<int64_t>(dim, 1), &bytes);
  }
  if (overflows) throw Error(Cat("stablehlo: ", type.ToString(), " is too large"));
  int block = argument ? blocks_.front().id : blocks_.back().id;
  values_.push_back(Record{
      .type = type, .block = block, .number = number, .result = result, .argument = argument});
  return static_cast<int>(values_.size()) - 1;
}

bool Builder::IsVisible(const Record& record) const {
  for (size_t i = blocks_.size(); i > isolation_; --i) {
    if (blocks_[i - 1].id == record.block) return true;
  }
  return false;
}

Value Builder::JoinedForm(Value x) const {
  const int form = values_[x.id_].joined;
  return form >= 0 && IsVisible(values_[form]) ? Value(x.builder_, form) : Value();
}

Transposition* Builder::FindTransposition(Value x) {
  const int found = values_[x.id_].transposition;
  return found >= 0 && IsVisible(transpositions_[found].operand) ? &transpositions_[found]
                                                                 : nullptr;
}

void Builder::SetTransposition(Value x, Transposition transposition) {
  values_[x.id_].transposition = static_cast<int>(transpositions_.size());
  transpositions_.push_back(std::move(transposition));
}

void Builder::ShareTransposition(Value x, Value of) {
  values_[x.id_].transposition = values_[of.id_].transposition;
}

const Builder::Record& Builder::Check(Value value, std::string_view op) const {
  if (value.builder_ == nullptr) throw Error(Cat(op, ": an operand is an invalid value"));
  if (value.builder_ != this) throw Error(Cat(op, ": an operand belongs to another builder"));
  const Record& record = values_[value.id_];
  if (IsVisible(record)) return record;
  throw Error(Cat(op, ": an operand of type ", record.type.ToString(),
                  " belongs to a region that is not visible here"));
}

void Builder::AppendName(const Record& record, std::string& out) const {
  out += record.argument ? "%arg" : "%";
  AppendInt(out, record.number);
  if (record.result >= 0) {
    out += '#';
    AppendInt(out, record.result);
  }
}

void Builder::AppendIndent(std::string& out) const { out.append(2 + 2 * blocks_.size(), ' '); }

void Builder::AppendResultNames(int number, size_t results, std::string& out) const {
  AppendIndent(out);
  if (results == 0) return;
  out += '%';
  AppendInt(out, number);
  if (results > 1) {
    out += ':';
    AppendInt(out, static_cast<int64_t>(results));
  }
  out += " = ";
}

std::vector<Value> Builder::NewResults(int number, std::span<const Value> operands, OpKind kind,
                                       std::span<const Type> results) {
  while (operations_.size() < static_cast<size_t>(number)) operations_.emplace_back();
  operations_.push_back(
      {kind, static_cast<int>(operands_.size()), static_cast<int>(operands.size())});
  for (Value operand : operands) operands_.push_back(operand.id_);
  std::vector<Value> values;
  values.reserve(results.size());
  for (size_t i = 0; i < results.size(); ++i) {
    int result = results.size() == 1 ? -1 : static_cast<int>(i);
    values.push_back(Value(this, NewValue(results[i], number, result, false)));
  }
  return values;
}

// ---- @main

Value Builder::Parameter(const Type& type, std::string_view attributes) {
  int id = NewValue(type, num_parameters(), -1, true);
  parameters_.push_back(ParameterInfo{id, -1, std::string(attributes)});
  return Value(this, id);
}

void Builder::SetAlias(int parameter, int output) {
  if (parameter < 0 || parameter >= num_parameters()) {
    throw Error(Cat("Builder::SetAlias: no parameter ", parameter));
  }
  parameters_[parameter].alias = output;
}

void Builder::AddParameterAttributes(int parameter, std::string_view attributes) {
  if (parameter < 0 || parameter >= num_parameters()) {
    throw Error(Cat("Builder::AddParameterAttributes: no parameter ", parameter));
  }
  AppendAttributes(parameters_[parameter].attributes, attributes);
}

void Builder::AddOutputAttributes(int output, std::string_view attributes) {
  AppendAttributes(output_attributes_[output], attributes);
}

std::string Builder::Finish(std::initializer_list<Value> outputs, std::string_view name) const {
  return Finish(std::span<const Value>(outputs.begin(), outputs.size()), name);
}

std::string Builder::Finish(std::span<const Value> outputs, std::string_view name) const {
  if (blocks_.size() != 1) throw Error("Builder::Finish: called inside a region");
  std::vector<const Record*> records;
  records.reserve(outputs.size());
  for (Value v : outputs) records.push_back(&Check(v, "Builder::Finish"));

  std::string out;
  out.reserve(blocks_[0].text.size() + functions_.size() + 4096);
  out += Cat("module ", Symbol(name));
  if (partitions_ > 1) {
    out += Cat(" attributes {mhlo.num_partitions = ", partitions_,
               " : i32, mhlo.num_replicas = 1 : i32}");
  }
  out += " {\n  func.func public @main(";
  std::vector<int> alias_of(outputs.size(), -1);
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const ParameterInfo& parameter = parameters_[i];
    const Record& record = values_[parameter.value];
    if (i > 0) out += ", ";
    AppendName(record, out);
    out += ": ";
    record.type.AppendTo(out);
    std::string attributes = parameter.attributes;
    if (parameter.alias >= 0) {
      if (parameter.alias >= static_cast<int>(outputs.size())) {
        throw Error(Cat("Builder::Finish: parameter ", i, " is aliased to output ", parameter.alias,
                        " of ", outputs.size()));
      }
      if (alias_of[parameter.alias] >= 0) {
        throw Error(Cat("Builder::Finish: parameters ", alias_of[parameter.alias], " and ", i,
                        " are both aliased to output ", parameter.alias));
      }
      alias_of[parameter.alias] = static_cast<int>(i);
      if (records[parameter.alias]->type != record.type) {
        throw Error(Cat("Builder::Finish: parameter ", i, " of type ", record.type.ToString(),
                        " is aliased to output ", parameter.alias, " of type ",
                        records[parameter.alias]->type.ToString()));
      }
      AppendAttributes(attributes, Cat("tf.aliasing_output = ", parameter.alias, " : i32"));
    }
    if (!attributes.empty()) out += Cat(" {", attributes, "}");
  }
  out += ") -> (";
  for (size_t i = 0; i < records.size(); ++i) {
    if (i > 0) out += ", ";
    records[i]->type.AppendTo(out);
    auto found = output_attributes_.find(static_cast<int>(i));
    if (found != output_attributes_.end()) out += Cat(" {", found->second, "}");
  }
  out += ") {\n";
  out += blocks_[0].text;
  out += "    return";
  for (size_t i = 0; i < records.size(); ++i) {
    out += i > 0 ? ", " : " ";
    AppendName(*records[i], out);
  }
  for (size_t i = 0; i < records.size(); ++i) {
    out += i > 0 ? ", " : " : ";
    records[i]->type.AppendTo(out);
  }
  out += "\n  }\n";
  out += functions_;
  out += "}\n";
  return out;
}

// ---- Ops

void Builder::SetLocation(std::string_view file, int line, std::string_view name) {
  std::string position = Cat(Quoted(file), ":", line < 0 ? 0 : line, ":0");
  location_ =
      name.empty() ? Cat(" loc(", position, ")") : Cat(" loc(", Quoted(name), "(", position, "))");
}

std::vector<Value> Builder::Op(std::string_view name, std::span<const Value> operands,
                               std::span<const Type> results, std::string_view attributes,
                               std::span<const Region> regions) {
  // The text is written straight into the block, so check every operand before.
  for (Value v : operands) Check(v, name);
  int number = next_number_++;
  ++num_ops_;
  std::string& out = blocks_.back().text;
  AppendResultNames(number, results.size(), out);
  out += '"';
  out += name;
  out += "\"(";
  for (size_t i = 0; i < operands.size(); ++i) {
    if (i > 0) out += ", ";
    AppendName(values_[operands[i].id_], out);
  }
  out += ')';
  if (!regions.empty()) {
    out += " (";
    for (size_t i = 0; i < regions.size(); ++i) {
      out += i > 0 ? ", {\n" : "{\n";
      out += regions[i].text;
      AppendIndent(out);
      out += '}';
    }
    out += ')';
  }
  if (!attributes.empty()) {
    out += " {";
    out += attributes;
    out += '}';
  }
  out += " : (";
  for (size_t i = 0; i < operands.size(); ++i) {
    if (i > 0) out += ", ";
    values_[operands[i].id_].type.AppendTo(out);
  }
  out += ") -> ";
  AppendTypeList(out, results);
  out += location_;
  out += '\n';
  return NewResults(number, operands, KindOfOp(name), results);
}

Value Builder::Op(std::string_view name, std::initializer_list<Value> operands, const Type& result,
                  std::string_view attributes, std::span<const Region> regions) {
  return Op(name, std::span<const Value>(operands.begin(), operands.size()), result, attributes,
            regions);
}

Value Builder::Op(std::string_view name, std::span<const Value> operands, const Type& result,
                  std::string_view attributes, std::span<const Region> regions) {
  return Op(name, operands, std::span<const Type>(&result, 1), attributes, regions)[0];
}

Builder::Operation Builder::MadeBy(Value x) const {
  const Record& record = values_[x.id_];
  const auto number = static_cast<size_t>(record.number);
  return record.argument || number >= operations_.size() ? Operation() : operations_[number];
}

std::vector<Value> Builder::OperandsOf(Value x) {
  const Operation made = MadeBy(x);
  std::vector<Value> values;
  for (int i = 0; i < made.count; ++i) values.push_back(Value(this, operands_[made.first + i]));
  return values;
}

const Dims* Builder::StartsOf(Value x) const {
  const auto found = starts_.find(x.id_);
  return found == starts_.end() ? nullptr : &found->second;
}

Value Builder::UniqueOp(std::string_view name, const Type& result, std::string_view attributes) {
  std::string key = Cat(name, "|", attributes, "|");
  result.AppendTo(key);
  auto found = blocks_.back().unique.find(key);
  if (found != blocks_.back().unique.end()) return Value(this, found->second);
  Value value = Op(name, std::span<const Value>(), result, attributes);
  blocks_.back().unique.emplace(std::move(key), value.id_);
  return value;
}

std::vector<Value> Builder::PrettyOp(std::string_view text, std::span<const Value> operands,
                                     std::span<const Type> results) {
  for (Value v : operands) Check(v, text.substr(0, text.find_first_of("( ")));
  int number = next_number_++;
  ++num_ops_;
  std::string& out = blocks_.back().text;
  AppendResultNames(number, results.size(), out);
  for (size_t i = 0; i < text.size(); ++i) {
    size_t operand = text[i] == '$' && i + 1 < text.size() ? text[i + 1] - '0' : operands.size();
    if (operand < operands.size()) {
      AppendName(values_[operands[operand].id_], out);
      ++i;
    } else {
      out += text[i];
    }
  }
  out += location_;
  out += '\n';
  return NewResults(number, operands, OpKind::kOther, results);
}

// ---- Regions and functions

Region Builder::RunBody(std::span<const Type> arguments, const Body& body,
                        std::string_view terminator, std::vector<int>& argument_ids) {
  size_t depth = blocks_.size();
  OpenBlock();
  try {
    std::vector<Value> values;
    for (const Type& type : arguments) {
      argument_ids.push_back(NewValue(type, next_number_++, -1, false));
      values.push_back(Value(this, argument_ids.back()));
    }
    std::vector<Value> results = body(values);
    Region region;
    std::string& out = blocks_.back().text;
    for (Value v : results) {
      Check(v, terminator);
      region.results.push_back(v.type());
    }
    AppendIndent(out);
    out += terminator;
    for (size_t i = 0; i < results.size(); ++i) {
      out += i > 0 ? ", " : " ";
      AppendName(values_[results[i].id_], out);
    }
    for (size_t i = 0; i < results.size(); ++i) {
      out += i > 0 ? ", " : " : ";
      region.results[i].AppendTo(out);
    }
    out += '\n';
    region.text = CloseBlock().text;
    return region;
  } catch (...) {
    while (blocks_.size() > depth) blocks_.pop_back();
    throw;
  }
}

Region Builder::MakeRegion(std::span<const Type> arguments, const Body& body) {
  Restore restore(isolation_, location_);
  std::vector<int> ids;
  Region region = RunBody(arguments, body, "stablehlo.return", ids);
  if (!ids.empty()) {
    std::string header;
    AppendIndent(header);
    header += "^bb0(";
    for (size_t i = 0; i < ids.size(); ++i) {
      if (i > 0) header += ", ";
      AppendName(values_[ids[i]], header);
      header += ": ";
      values_[ids[i]].type.AppendTo(header);
    }
    header += "):\n";
    region.text.insert(0, header);
  }
  return region;
}

std::string Builder::UniqueSymbol(std::string_view name) const {
  std::string unique(name);
  for (int i = 0; unique == "main" || signatures_.contains(unique); ++i) unique = Cat(name, "_", i);
  return unique;
}

std::string Builder::Function(std::string_view name, std::span<const Type> arguments,
                              const Body& body) {
  Restore restore(isolation_, location_);
  const std::string unique = UniqueSymbol(name);
  // Reserves the name. A call of the function inside its own body would be recursion.
  signatures_[unique] = {};
  isolation_ = blocks_.size();
  std::vector<int> ids;
  Region region;
  try {
    region = RunBody(arguments, body, "return", ids);
  } catch (...) {
    signatures_.erase(unique);
    throw;
  }
  std::string text = Cat("  func.func private ", Symbol(unique), "(");
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i > 0) text += ", ";
    AppendName(values_[ids[i]], text);
    text += ": ";
    values_[ids[i]].type.AppendTo(text);
  }
  text += ") -> (";
  text += TypeNames(region.results);
  text += ") {\n";
  text += region.text;
  text += "  }\n";
  functions_ += text;
  signatures_[unique] = {{arguments.begin(), arguments.end()}, region.results};
  return unique;
}

std::string Builder::AddFunctions(std::string_view text) {
  if (auto found = texts_.find(text); found != texts_.end()) return found->second;
  FunctionText functions = ParseFunctions(text, function_form_);
  for (std::string& symbol : functions.symbols) {
    symbol = UniqueSymbol(symbol);
    signatures_[symbol] = {};
  }
  const std::string& first = functions.symbols[0];
  signatures_[first] = {std::move(functions.arguments), std::move(functions.results)};
  for (const FunctionText::Piece& piece : functions.pieces) {
    functions_ += piece.text;
    if (piece.symbol >= 0) functions_ += Symbol(functions.symbols[piece.symbol]);
  }
  texts_.emplace(text, first);
  return first;
}

std::vector<Value> Builder::Call(std::string_view symbol, std::span<const Value> operands) {
  auto found = signatures_.find(symbol);
  if (found == signatures_.end()) throw Error(Cat("func.call: no function ", symbol));
  if (!SameTypes(TypesOf(operands), found->second.arguments)) {
    Fail("func.call", Cat(symbol, "(", TypeNames(found->second.arguments), ")"), operands);
  }
  return Op("func.call", operands, found->second.results, Cat("callee = ", Symbol(symbol)));
}

}  // namespace torch_xla::stablehlo
