import COrtrain
import Foundation

/// The domain of the errors of this library.
public let ORTErrorDomain = "onnxruntime"

/// An object that owns a handle of the C library, which lives as long as the object.
protocol HandleOwner: AnyObject {
  var handle: OpaquePointer { get }

  /// Why the handle cannot be used now, or nil.
  var whyUnusable: String? { get }
}

extension HandleOwner {
  var whyUnusable: String? { nil }
}

/// The method that is being called: checks its arguments and turns failures into errors.
struct Call {
  private let method: StaticString

  @inline(__always)
  init(_ method: StaticString) {
    self.method = method
  }

  /// Throws the error of a failed call.
  @inline(__always)
  func check(_ status: OpaquePointer?) throws {
    if let status { throw Self.failure(status) }
  }

  @inline(never)
  private static func failure(_ status: OpaquePointer) -> NSError {
    let general = Tables.general.pointee
    defer { general.ReleaseStatus(status) }
    return error(general.GetErrorCode(status), textCopying(general.GetErrorMessage(status)))
  }

  private static func error(_ code: OrtErrorCode, _ message: String) -> NSError {
    NSError(domain: ORTErrorDomain, code: Int(code.rawValue), userInfo: [NSLocalizedDescriptionKey: message])
  }

  /// The error for an invalid argument.
  @inline(never)
  func refusal(_ why: String) -> NSError {
    Self.error(ORT_INVALID_ARGUMENT, "\(method): \(why)")
  }

  // MARK: Arguments in their C form

  /// The text, to be freed with `free`.
  func text(_ text: String, _ name: String) throws -> UnsafeMutablePointer<CChar> {
    if text.utf8.contains(0) { throw refusal("argument \(name): expected a string, found a null character in it") }
    return strdup(text)
  }

  func text(_ text: String?, _ name: String) throws -> UnsafeMutablePointer<CChar>? {
    try text.map { try self.text($0, name) }
  }

  func texts(_ texts: some Collection<String>, _ name: String) throws -> Texts {
    for (i, text) in texts.enumerated() where text.utf8.contains(0) {
      throw refusal("argument \(name), element \(i): expected a string, found a null character in it")
    }
    return Texts(Array(texts))
  }

  func dims(_ shape: [NSNumber]) throws -> [Int64] {
    try shape.enumerated().map { i, dim in
      guard let whole = Int64(exactly: dim) else {
        throw refusal("argument shape, element \(i): expected a 64-bit integer, found \(dim)")
      }
      return whole
    }
  }

  func handle(_ owner: some HandleOwner, _ name: String) throws -> OpaquePointer {
    if let why = owner.whyUnusable { throw refusal("argument \(name): \(why)") }
    return owner.handle
  }

  func handle(_ owner: (some HandleOwner)?, _ name: String) throws -> OpaquePointer? {
    try owner.map { try handle($0, name) }
  }

  func values(_ values: [ORTValue], _ name: String) throws -> UnsafeMutablePointer<OpaquePointer?> {
    let handles = UnsafeMutablePointer<OpaquePointer?>.allocate(capacity: max(values.count, 1))
    for (i, value) in values.enumerated() {
      if let why = value.whyUnusable {
        handles.deallocate()
        throw refusal("argument \(name), element \(i): \(why)")
      }
      handles[i] = value.handle
    }
    return handles
  }

  func namedValues(_ values: [String: ORTValue], _ name: String) throws -> NamedValues {
    let names = Array(values.keys)
    let handles = try self.values(names.map { values[$0]! }, name)
    do {
      return NamedValues(names: try texts(names, name), values: handles)
    } catch {
      handles.deallocate()
      throw error
    }
  }

  func sameLength(_ first: Int, _ name: String, _ other: Int, _ otherName: String) throws {
    if first == other { return }
    throw refusal("argument \(otherName): expected \(first) elements, as in \(name), found \(other)")
  }

  // MARK: Results

  /// The number of elements of a tensor.
  func elementCount(_ value: OpaquePointer) throws -> Int {
    var info: OpaquePointer?
    try check(Tables.general.pointee.GetTensorTypeAndShape(value, &info))
    defer { Tables.general.pointee.ReleaseTensorTypeAndShapeInfo(info) }
    var count = 0
    try check(Tables.general.pointee.GetTensorShapeElementCount(info, &count))
    return count
  }

  /// A value of an enumeration; a library newer than this package may return one that it does not know.
  func value<Value: RawRepresentable>(_ raw: some BinaryInteger) throws -> Value where Value.RawValue == Int32 {
    if let found = Value(rawValue: Int32(truncatingIfNeeded: raw)) { return found }
    throw Self.error(ORT_FAIL, "\(method): expected a value of \(Value.self), found \(raw)")
  }

  /// Rejects a property of another type.
  func property(_ name: String, _ expected: OrtPropertyType, _ found: OrtPropertyType) throws {
    if found == expected { return }
    let kinds = ["an integer", "a float", "a string"]
    throw refusal("property \(name): expected \(kinds[Int(expected.rawValue)]), found \(kinds[Int(found.rawValue)])")
  }
}

/// Texts in the form that C takes.
struct Texts {
  let texts: [String]
  let pointers: UnsafeMutablePointer<UnsafePointer<CChar>?>

  var count: Int { texts.count }

  init(_ texts: [String]) {
    self.texts = texts
    pointers = .allocate(capacity: max(texts.count, 1))
    for (i, text) in texts.enumerated() { pointers[i] = UnsafePointer(strdup(text)) }
  }

  func free() {
    for i in 0..<count { Foundation.free(UnsafeMutablePointer(mutating: pointers[i])) }
    pointers.deallocate()
  }
}

/// Values with their names, in the form that C takes.
struct NamedValues {
  let names: Texts
  let values: UnsafeMutablePointer<OpaquePointer?>

  var count: Int { names.count }

  func free() {
    names.free()
    values.deallocate()
  }
}

/// An array of values that a call fills. Values that nobody takes are released when the array is freed.
struct Outputs {
  let count: Int
  let handles: UnsafeMutablePointer<OpaquePointer?>

  init(count: Int) {
    self.count = count
    handles = .allocate(capacity: max(count, 1))
    handles.initialize(repeating: nil, count: count)
  }

  func taken() -> [ORTValue] {
    (0..<count).map { i in
      defer { handles[i] = nil }
      return ORTValue(taking: handles[i]!)
    }
  }

  func free() {
    for i in 0..<count where handles[i] != nil { Tables.general.pointee.ReleaseValue(handles[i]) }
    handles.deallocate()
  }
}

/// Calls a function with the bytes of data, without a copy; nil for no data.
func withBytes<Result>(_ data: Data?, _ body: (UnsafeRawPointer?) -> Result) -> Result {
  guard let data else { return body(nil) }
  // Empty data has no memory, but differs from no data.
  return data.withUnsafeBytes { body($0.baseAddress ?? UnsafeRawPointer(bitPattern: 16)) }
}

/// A value of an enumeration in the type of C.
@inline(__always)
func cValue<Value: RawRepresentable, C: RawRepresentable>(_ value: Value) -> C
where Value.RawValue == Int32, C.RawValue: BinaryInteger {
  C(rawValue: numericCast(value.rawValue))!
}

/// A value of an enumeration where C takes a number.
@inline(__always)
func cValue<Value: RawRepresentable>(_ value: Value) -> Int32 where Value.RawValue == Int32 {
  value.rawValue
}

/// Names come from files; bytes that are not UTF-8 are still shown.
func textCopying(_ text: UnsafePointer<CChar>?) -> String {
  text.map { String(cString: $0) } ?? ""
}

func textTaking(_ text: UnsafeMutablePointer<CChar>?) -> String {
  defer { freeMemory(text) }
  return textCopying(text)
}

func dataTaking(_ bytes: UnsafeMutableRawPointer?, _ size: Int) -> Data {
  defer { freeMemory(bytes) }
  return bytes.map { Data(bytes: $0, count: size) } ?? Data()
}

/// Returns memory to the allocator.
func freeMemory(_ memory: UnsafeMutableRawPointer?) {
  if memory != nil { Tables.allocator.pointee.Free(Tables.allocator, memory) }
}
