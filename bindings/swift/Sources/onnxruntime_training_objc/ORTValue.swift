import COrtrain
import Foundation

/// A value: a dense tensor over its own memory or the caller's.
public final class ORTValue: HandleOwner {
  let handle: OpaquePointer

  /// The memory of the tensor, if it belongs to the caller.
  private let data: NSMutableData?
  private let bytes: UnsafeMutableRawPointer?
  private let size: Int

  /// A tensor may not have the null pointer of empty data.
  private nonisolated(unsafe) static let nothing = UnsafeMutableRawPointer.allocate(byteCount: 1, alignment: 16)

  private static func bytes(of data: NSMutableData) -> UnsafeMutableRawPointer {
    data.length == 0 ? nothing : data.mutableBytes
  }

  /// Creates a tensor over the caller's data, without a copy.
  ///
  /// The tensor keeps the data alive and shares its contents. The length of the data must not change: a tensor whose data has
  /// become shorter or moved is rejected by every method.
  ///
  /// - Parameters:
  ///   - tensorData: The elements in row-major order.
  ///   - elementType: Type of the elements.
  ///   - shape: The dimensions, whole numbers of 0 or more; an empty array for a scalar.
  /// - Throws: `NSError` of the domain `onnxruntime`: `ORTErrorCode.invalidArgument` when a dimension is negative or not whole,
  ///   or the data is smaller than the tensor; `ORTErrorCode.notImplemented` when tensors of the type are not supported.
  public convenience init(tensorData: NSMutableData, elementType: ORTTensorElementDataType, shape: [NSNumber]) throws {
    let call = Call("ORTValue.init(tensorData:elementType:shape:)")
    try self.init(tensorData, elementType, call.dims(shape), call)
  }

  init(_ data: NSMutableData, _ elementType: ORTTensorElementDataType, _ shape: [Int64], _ call: Call) throws {
    let general = Tables.general
    var memory: OpaquePointer?
    try call.check(general.pointee.CreateCpuMemoryInfo(OrtArenaAllocator, OrtMemTypeDefault, &memory))
    defer { general.pointee.ReleaseMemoryInfo(memory) }
    let bytes = Self.bytes(of: data)
    var made: OpaquePointer?
    try call.check(
      general.pointee.CreateTensorWithDataAsOrtValue(
        memory, bytes, data.length, shape, shape.count,
        cValue(elementType), &made))
    var size = 0
    let status = general.pointee.GetTensorSizeInBytes(made, &size)
    if status != nil { general.pointee.ReleaseValue(made) }
    try call.check(status)
    handle = made!
    self.data = data
    self.bytes = bytes
    self.size = size
  }

  init(taking handle: OpaquePointer) {
    self.handle = handle
    data = nil
    bytes = nil
    size = 0
  }

  deinit {
    Tables.general.pointee.ReleaseValue(handle)
  }

  var whyUnusable: String? {
    guard let data else { return nil }
    let length = data.length
    if length >= size && Self.bytes(of: data) == bytes { return nil }
    return "the data of the tensor was moved or resized, expected \(size) bytes at the same address, found \(length)"
  }

  /// The kind of the value, and for a tensor its type and shape.
  public func typeInfo() throws -> ORTValueTypeInfo {
    defer { withExtendedLifetime(self) {} }
    var info: OpaquePointer?
    try Call("ORTValue.typeInfo()").check(Tables.general.pointee.GetTypeInfo(handle, &info))
    return ORTValueTypeInfo(taking: info!)
  }

  /// Element type and shape of the tensor.
  public func tensorTypeAndShapeInfo() throws -> ORTTensorTypeAndShapeInfo {
    defer { withExtendedLifetime(self) {} }
    var info: OpaquePointer?
    try Call("ORTValue.tensorTypeAndShapeInfo()").check(Tables.general.pointee.GetTensorTypeAndShape(handle, &info))
    return ORTTensorTypeAndShapeInfo(taking: info!)
  }

  /// The elements of the tensor, row by row, without a copy.
  ///
  /// Writing to the data writes to the tensor. The data keeps the memory alive, so it may be used after the tensor is
  /// gone. For a tensor over the caller's data, the result is that data. The data of any other tensor becomes a copy
  /// if its length is changed.
  public func tensorData() throws -> NSMutableData {
    let call = Call("ORTValue.tensorData()")
    let elements = try self.elements(call)
    // The caller's own data stays valid even when its length is changed afterwards.
    if let data, data.length == size { return data }
    return TensorData(of: self, elements)
  }

  /// The memory of the elements, which lives as long as the tensor.
  func elements(_ call: Call) throws -> UnsafeMutableRawBufferPointer {
    _ = try call.handle(self, "self")
    var bytes: UnsafeMutableRawPointer?
    var size = 0
    try call.check(Tables.general.pointee.GetTensorMutableData(handle, &bytes))
    try call.check(Tables.general.pointee.GetTensorSizeInBytes(handle, &size))
    return UnsafeMutableRawBufferPointer(start: bytes, count: size)
  }
}

/// The data of a tensor that the library made. It keeps the tensor alive.
final class TensorData: NSMutableData {
  private var value: ORTValue?
  private var memory = UnsafeMutableRawBufferPointer(start: nil, count: 0)

  convenience init(of value: ORTValue, _ memory: UnsafeMutableRawBufferPointer) {
    // Foundation on Linux allocates memory for data of its own class, and does not free that memory for subclasses.
    self.init(bytesNoCopy: memory.baseAddress ?? Self.nothing, length: 0, freeWhenDone: false)
    self.value = value
    self.memory = memory
  }

  deinit {
    if value == nil { memory.deallocate() }
  }

  override var bytes: UnsafeRawPointer { UnsafeRawPointer(mutableBytes) }

  override var mutableBytes: UnsafeMutableRawPointer { memory.baseAddress ?? Self.nothing }

  /// Where empty data lies.
  private static var nothing: UnsafeMutableRawPointer { UnsafeMutableRawPointer(bitPattern: 16)! }

  /// Data whose length was changed no longer shares the memory of the tensor.
  override var length: Int {
    get { memory.count }
    set {
      if newValue == memory.count { return }
      let copy = UnsafeMutableRawBufferPointer.allocate(byteCount: newValue, alignment: 16)
      let kept = Swift.min(newValue, memory.count)
      copy.copyMemory(from: UnsafeRawBufferPointer(rebasing: memory[..<kept]))
      UnsafeMutableRawBufferPointer(rebasing: copy[kept...]).initializeMemory(as: UInt8.self, repeating: 0)
      if value == nil { memory.deallocate() }
      value = nil
      memory = copy
    }
  }

  // On Linux, Foundation's versions of these methods write into separate memory.

  override func append(_ bytes: UnsafeRawPointer, length: Int) {
    replaceBytes(in: NSRange(location: self.length, length: 0), withBytes: bytes, length: length)
  }

  override func append(_ other: Data) {
    other.withUnsafeBytes { bytes in
      if let start = bytes.baseAddress { append(start, length: bytes.count) }
    }
  }

  override func replaceBytes(in range: NSRange, withBytes bytes: UnsafeRawPointer) {
    replaceBytes(in: range, withBytes: bytes, length: range.length)
  }

  override func replaceBytes(in range: NSRange, withBytes bytes: UnsafeRawPointer?, length: Int) {
    // Copy first: the given bytes may be part of this data.
    let replacement = bytes.map { Data(bytes: $0, count: length) } ?? Data()
    let rest = Data(bytes: mutableBytes + NSMaxRange(range), count: self.length - NSMaxRange(range))
    self.length += length - range.length
    let place = UnsafeMutableRawBufferPointer(rebasing: memory[range.location...])
    place.copyBytes(from: replacement)
    UnsafeMutableRawBufferPointer(rebasing: place[length...]).copyBytes(from: rest)
  }
}

/// The type information of a value.
public final class ORTValueTypeInfo: @unchecked Sendable {
  /// The kind of the value.
  public let type: ORTValueType

  /// Type and shape of a tensor, nil for a value that is not a tensor.
  public let tensorTypeAndShapeInfo: ORTTensorTypeAndShapeInfo?

  init(taking handle: OpaquePointer) {
    let general = Tables.general
    defer { general.pointee.ReleaseTypeInfo(handle) }
    var type = ONNX_TYPE_UNKNOWN
    general.pointee.ReleaseStatus(general.pointee.GetOnnxTypeFromTypeInfo(handle, &type))
    self.type = ORTValueType(rawValue: Int32(truncatingIfNeeded: type.rawValue)) ?? .unknown
    var tensor: OpaquePointer?
    general.pointee.ReleaseStatus(general.pointee.CastTypeInfoToTensorInfo(handle, &tensor))
    tensorTypeAndShapeInfo = tensor.map { ORTTensorTypeAndShapeInfo(borrowing: $0) }
  }
}

/// Element type and shape of a tensor.
public final class ORTTensorTypeAndShapeInfo: @unchecked Sendable {
  /// Type of the elements.
  public let elementType: ORTTensorElementDataType

  /// The dimensions, -1 for an unknown one; an empty array for a scalar.
  public let shape: [NSNumber]

  init(borrowing handle: OpaquePointer) {
    let general = Tables.general
    var type = ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED
    general.pointee.ReleaseStatus(general.pointee.GetTensorElementType(handle, &type))
    elementType = ORTTensorElementDataType(rawValue: Int32(truncatingIfNeeded: type.rawValue)) ?? .undefined
    var rank = 0
    general.pointee.ReleaseStatus(general.pointee.GetDimensionsCount(handle, &rank))
    var dims = [Int64](repeating: 0, count: rank)
    general.pointee.ReleaseStatus(general.pointee.GetDimensions(handle, &dims, rank))
    shape = dims.map { NSNumber(value: $0) }
  }

  convenience init(taking handle: OpaquePointer) {
    self.init(borrowing: handle)
    Tables.general.pointee.ReleaseTensorTypeAndShapeInfo(handle)
  }
}
