import COrtrain
import Foundation

extension ORTValue {
  /// Creates a tensor with a copy of strings.
  ///
  /// - Parameters:
  ///   - tensorStringData: The elements in row-major order, without null characters.
  ///   - shape: The dimensions, whole numbers of 0 or more; an empty array for a scalar.
  /// - Throws: `NSError` of the domain `onnxruntime`: `ORTErrorCode.invalidArgument` when a dimension is negative or not whole,
  ///   or the number of elements does not match the shape.
  public convenience init(tensorStringData: [String], shape: [NSNumber]) throws {
    let call = Call("ORTValue.init(tensorStringData:shape:)")
    try self.init(tensorStringData, call.dims(shape), "tensorStringData", call)
  }

  /// Creates a tensor with a copy of strings.
  ///
  /// - Parameters:
  ///   - values: The elements in row-major order, without null characters.
  ///   - shape: The dimensions; an empty array for a scalar.
  /// - Throws: `NSError` of the domain `onnxruntime` when the number of elements does not match the shape.
  public convenience init(_ values: [String], shape: [Int]) throws {
    try self.init(values, shape.map { Int64($0) }, "values", Call("ORTValue.init(_:shape:)"))
  }

  private convenience init(_ strings: [String], _ shape: [Int64], _ name: String, _ call: Call) throws {
    let general = Tables.general
    let texts = try call.texts(strings, name)
    defer { texts.free() }
    var made: OpaquePointer?
    try call.check(
      general.pointee.CreateTensorAsOrtValue(
        Tables.allocator, shape, shape.count, ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING, &made))
    let status = general.pointee.FillStringTensor(made, texts.pointers, texts.count)
    if status != nil { general.pointee.ReleaseValue(made) }
    try call.check(status)
    self.init(taking: made!)
  }

  /// The elements of a tensor of strings, row by row, as a copy.
  ///
  /// - Throws: `NSError` of the domain `onnxruntime` when the elements are of another type, or not UTF-8.
  public func tensorStringData() throws -> [String] {
    defer { withExtendedLifetime(self) {} }
    let call = Call("ORTValue.tensorStringData()")
    let general = Tables.general
    let count = try call.elementCount(handle)
    var length = 0
    try call.check(general.pointee.GetStringTensorDataLength(handle, &length))
    var bytes = [UInt8](repeating: 0, count: length)
    // One more offset than strings, so that every string ends where the next begins.
    var offsets = [Int](repeating: length, count: count + 1)
    try call.check(general.pointee.GetStringTensorContent(handle, &bytes, length, &offsets, count))
    offsets[count] = length
    return try (0..<count).map { i in
      guard let text = String(validating: bytes[offsets[i]..<offsets[i + 1]], as: UTF8.self) else {
        throw call.refusal("element \(i) of the tensor is not UTF-8")
      }
      return text
    }
  }
}
