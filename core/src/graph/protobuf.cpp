#include "graph/protobuf.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace ortrain::protobuf {

static_assert(std::endian::native == std::endian::little, "numbers are in little-endian order");

namespace {

enum Wire : uint32_t { kVarint = 0, kFixed64 = 1, kLength = 2, kGroup = 3, kGroupEnd = 4, kFixed32 = 5 };

constexpr int kMostNested = 100;  // messages and groups, as in protobuf's library
constexpr size_t kMostInLength = kMostBytes - 16;

Wire wire_of(Kind kind) {
  switch (kind) {
    case Kind::kFloat:
      return kFixed32;
    case Kind::kDouble:
      return kFixed64;
    case Kind::kText:
    case Kind::kView:
    case Kind::kMessage:
      return kLength;
    default:
      return kVarint;
  }
}

size_t size_of_fixed(Kind kind) { return kind == Kind::kFloat ? sizeof(float) : sizeof(double); }

class Reader {
 public:
  explicit Reader(std::string_view bytes) : at_(bytes.data()), end_(bytes.data() + bytes.size()) {}

  // Reads up to the end of the bytes. `message` is null where it is only checked.
  bool read_message(const Type& type, void* message, int depth) {
    while (at_ < end_) {
      uint32_t tag = 0;
      if (!read_tag(tag)) return false;
      const Field* field = type.find(tag >> 3);
      if (field == nullptr || !fits(*field, tag & 7)) {
        if (!skip(tag, depth)) return false;
      } else if (!read_field(*field, tag & 7, message, depth)) {
        return false;
      }
    }
    return true;
  }

 private:
  static bool fits(const Field& field, uint32_t wire) {
    const Wire own = wire_of(field.kind);
    return wire == own || (wire == kLength && field.form != Form::kSingle);
  }

  bool read_field(const Field& field, uint32_t wire, void* message, int depth) {
    const bool stored = message != nullptr && field.add != nullptr;
    const auto element = [&] { return stored ? field.add(message, 1) : nullptr; };
    switch (field.kind) {
      case Kind::kMessage: {
        std::string_view bytes;
        return depth > 0 && read_bytes(bytes) &&
               Reader(bytes).read_message(*field.type, element(), depth - 1);
      }
      case Kind::kText:
      case Kind::kView: {
        std::string_view bytes;
        if (!read_bytes(bytes)) return false;
        if (!stored) return true;
        if (field.kind == Kind::kText)
          static_cast<std::string*>(element())->assign(bytes);
        else
          *static_cast<std::string_view*>(element()) = bytes;
        return true;
      }
      case Kind::kFloat:
      case Kind::kDouble: {
        const size_t each = size_of_fixed(field.kind);
        if (wire == kLength) return read_packed_fixed(field, each, stored ? message : nullptr);
        if (left() < each) return false;
        if (stored) std::memcpy(element(), at_, each);
        at_ += each;
        return true;
      }
      default:
        if (wire == kLength) return read_packed_varints(field, stored ? message : nullptr);
        uint64_t value = 0;
        if (!read_varint(value)) return false;
        if (stored && (field.kind != Kind::kEnum || field.known(static_cast<int32_t>(value))))
          put(field.kind, value, element(), 0);
        return true;
    }
  }

  // The element of that index from `to` on.
  static void put(Kind kind, uint64_t value, void* to, size_t index) {
    if (kind == Kind::kInt32 || kind == Kind::kEnum)
      static_cast<int32_t*>(to)[index] = static_cast<int32_t>(value);
    else
      std::memcpy(static_cast<char*>(to) + index * sizeof value, &value, sizeof value);
  }

  bool read_packed_fixed(const Field& field, size_t each, void* message) {
    std::string_view bytes;
    if (!read_bytes(bytes) || bytes.size() % each != 0) return false;
    if (message != nullptr && !bytes.empty())
      std::memcpy(field.add(message, bytes.size() / each), bytes.data(), bytes.size());
    return true;
  }

  bool read_packed_varints(const Field& field, void* message) {
    std::string_view bytes;
    if (!read_bytes(bytes)) return false;
    const auto count = static_cast<size_t>(
        std::count_if(bytes.begin(), bytes.end(), [](char c) { return (c & 0x80) == 0; }));
    if (!bytes.empty() && (bytes.back() & 0x80) != 0) return false;
    void* to = message != nullptr && count > 0 ? field.add(message, count) : nullptr;
    Reader inside(bytes);
    for (size_t i = 0; i < count; ++i) {
      uint64_t value = 0;
      if (!inside.read_varint(value)) return false;
      if (to != nullptr) put(field.kind, value, to, i);
    }
    return true;
  }

  size_t left() const { return static_cast<size_t>(end_ - at_); }

  bool read_varint(uint64_t& value) {
    constexpr int kMostBits = 70;
    for (int shift = 0; shift < kMostBits && at_ < end_; shift += 7) {
      const auto byte = static_cast<uint8_t>(*at_++);
      value |= uint64_t{byte & 0x7Fu} << shift;
      if (byte < 0x80) return true;
    }
    return false;
  }

  // A tag of at most five bytes.
  bool read_tag(uint32_t& tag) {
    const char* begin = at_;
    uint64_t value = 0;
    if (!read_varint(value) || at_ - begin > 5) return false;
    tag = static_cast<uint32_t>(value);
    return tag >> 3 != 0;
  }

  bool read_bytes(std::string_view& bytes) {
    const char* begin = at_;
    uint64_t length = 0;
    if (!read_varint(length) || at_ - begin > 5 || length > kMostInLength || length > left()) return false;
    bytes = {at_, static_cast<size_t>(length)};
    at_ += length;
    return true;
  }

  // An unknown field.
  bool skip(uint32_t tag, int depth) {
    uint64_t number = 0;
    std::string_view bytes;
    switch (tag & 7) {
      case kVarint:
        return read_varint(number);
      case kFixed64:
        return skip_bytes(8);
      case kLength:
        return read_bytes(bytes);
      case kGroup:
        while (depth > 0 && at_ < end_) {
          uint32_t inner = 0;
          if (!read_tag(inner)) return false;
          if ((inner & 7) == kGroupEnd) return inner >> 3 == tag >> 3;
          if (!skip(inner, depth - 1)) return false;
        }
        return false;
      case kFixed32:
        return skip_bytes(4);
      default:
        return false;
    }
  }
  bool skip_bytes(size_t count) {
    if (left() < count) return false;
    at_ += count;
    return true;
  }

  const char* at_;
  const char* end_;
};

size_t size_of_varint(uint64_t value) { return (static_cast<size_t>(std::bit_width(value | 1)) + 6) / 7; }

uint64_t varint_of(Kind kind, const void* from, size_t index) {
  if (kind == Kind::kInt32 || kind == Kind::kEnum)
    return static_cast<uint64_t>(int64_t{static_cast<const int32_t*>(from)[index]});  // sign-extended
  uint64_t value;
  std::memcpy(&value, static_cast<const char*>(from) + index * sizeof value, sizeof value);
  return value;
}

std::string_view bytes_of(Kind kind, const void* from) {
  return kind == Kind::kText ? std::string_view(*static_cast<const std::string*>(from))
                             : *static_cast<const std::string_view*>(from);
}

// A length precedes the data that it measures, so all lengths are found first, in the order in which they are
// written.
class Sizes {
 public:
  size_t of_message(const Type& type, const void* message) {
    size_t total = 0;
    for (size_t i = 0; i < type.size; ++i)
      if (type.fields[i].add != nullptr) total += of_field(type.fields[i], message);
    return total;
  }
  std::vector<size_t> lengths;

 private:
  size_t of_field(const Field& field, const void* message) {
    const size_t count = field.count(message), tag = size_of_varint(field.number << 3);
    if (count == 0) return 0;
    size_t total = 0;
    if (field.form == Form::kPacked) {
      const size_t place = lengths.size();
      lengths.push_back(0);
      total = of_numbers(field, field.get(message, 0), count);
      lengths[place] = total;
      return tag + size_of_varint(total) + total;
    }
    for (size_t i = 0; i < count; ++i) {
      const void* from = field.get(message, i);
      size_t length = 0;
      switch (wire_of(field.kind)) {
        case kLength:
          if (field.kind == Kind::kMessage) {
            const size_t place = lengths.size();
            lengths.push_back(0);
            length = of_message(*field.type, from);
            lengths[place] = length;
          } else {
            length = bytes_of(field.kind, from).size();
          }
          total += tag + size_of_varint(length) + length;
          break;
        default:
          total += tag + of_numbers(field, from, 1);
      }
    }
    return total;
  }

  static size_t of_numbers(const Field& field, const void* from, size_t count) {
    if (wire_of(field.kind) != kVarint) return count * size_of_fixed(field.kind);
    size_t total = 0;
    for (size_t i = 0; i < count; ++i) total += size_of_varint(varint_of(field.kind, from, i));
    return total;
  }
};

class Writer {
 public:
  Writer(const Put& put, const std::vector<size_t>& lengths) : put_(put), lengths_(lengths) {}

  void write_message(const Type& type, const void* message) {
    for (size_t i = 0; i < type.size; ++i)
      if (type.fields[i].add != nullptr) write_field(type.fields[i], message);
  }

 private:
  void write_field(const Field& field, const void* message) {
    const size_t count = field.count(message);
    if (count == 0) return;
    if (field.form == Form::kPacked) {
      write_varint(field.number << 3 | kLength);
      write_varint(lengths_[next_++]);
      write_numbers(field.kind, field.get(message, 0), count);
      return;
    }
    for (size_t i = 0; i < count; ++i) {
      const void* from = field.get(message, i);
      write_varint(field.number << 3 | wire_of(field.kind));
      if (field.kind == Kind::kMessage) {
        write_varint(lengths_[next_++]);
        write_message(*field.type, from);
      } else if (wire_of(field.kind) == kLength) {
        const std::string_view bytes = bytes_of(field.kind, from);
        write_varint(bytes.size());
        put_(bytes.data(), bytes.size());
      } else {
        write_numbers(field.kind, from, 1);
      }
    }
  }

  void write_numbers(Kind kind, const void* from, size_t count) {
    if (wire_of(kind) != kVarint) {
      put_(from, count * size_of_fixed(kind));
      return;
    }
    for (size_t i = 0; i < count; ++i) write_varint(varint_of(kind, from, i));
  }

  void write_varint(uint64_t value) {
    std::array<uint8_t, 10> bytes;
    size_t count = 0;
    for (; value >= 0x80; value >>= 7) bytes[count++] = static_cast<uint8_t>(value | 0x80);
    bytes[count++] = static_cast<uint8_t>(value);
    put_(bytes.data(), count);
  }

  const Put& put_;
  const std::vector<size_t>& lengths_;
  size_t next_ = 0;
};

}  // namespace

bool read(std::string_view bytes, const Type& type, void* message) {
  return bytes.size() <= kMostBytes && Reader(bytes).read_message(type, message, kMostNested);
}

size_t size(const Type& type, const void* message) { return Sizes().of_message(type, message); }

std::string write(const Type& type, const void* message) {
  std::string out;
  out.reserve(size(type, message));
  write(type, message,
        [&](const void* data, size_t bytes) { out.append(static_cast<const char*>(data), bytes); });
  return out;
}

void write(const Type& type, const void* message, const Put& put) {
  Sizes sizes;
  sizes.of_message(type, message);
  Writer(put, sizes.lengths).write_message(type, message);
}

}  // namespace ortrain::protobuf
