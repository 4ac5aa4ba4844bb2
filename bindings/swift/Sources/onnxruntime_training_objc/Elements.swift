import Foundation

/// A type of Swift that the elements of tensors have.
public protocol ORTElement: BitwiseCopyable {
  static var elementType: ORTTensorElementDataType { get }
}

extension Float: ORTElement { public static var elementType: ORTTensorElementDataType { .float } }
extension Double: ORTElement { public static var elementType: ORTTensorElementDataType { .double } }
extension Bool: ORTElement { public static var elementType: ORTTensorElementDataType { .bool } }
extension Int8: ORTElement { public static var elementType: ORTTensorElementDataType { .int8 } }
extension Int16: ORTElement { public static var elementType: ORTTensorElementDataType { .int16 } }
extension Int32: ORTElement { public static var elementType: ORTTensorElementDataType { .int32 } }
extension Int64: ORTElement { public static var elementType: ORTTensorElementDataType { .int64 } }
extension UInt8: ORTElement { public static var elementType: ORTTensorElementDataType { .uInt8 } }
extension UInt16: ORTElement { public static var elementType: ORTTensorElementDataType { .uInt16 } }
extension UInt32: ORTElement { public static var elementType: ORTTensorElementDataType { .uInt32 } }
extension UInt64: ORTElement { public static var elementType: ORTTensorElementDataType { .uInt64 } }

extension ORTValue {
  /// Creates a tensor with a copy of the elements.
  ///
  /// - Parameters:
  ///   - values: The elements in row-major order.
  ///   - shape: The dimensions; an empty array for a scalar.
  /// - Throws: `NSError` of the domain `onnxruntime` when the number of elements does not match the shape.
  public convenience init<Element: ORTElement>(_ values: [Element], shape: [Int]) throws {
    let call = Call("ORTValue.init(_:shape:)")
    var count = 1
    for (i, dim) in shape.enumerated() {
      let (product, overflow) = count.multipliedReportingOverflow(by: dim)
      if dim < 0 || overflow {
        throw call.refusal("argument shape, element \(i): expected a dimension of 0 or more in the range of Int, found \(dim)")
      }
      count = product
    }
    if values.count != count {
      throw call.refusal("argument values: expected \(count) elements for the shape \(shape), found \(values.count)")
    }
    let data = values.withUnsafeBytes { NSMutableData(bytes: $0.baseAddress, length: $0.count) }
    try self.init(data, Element.elementType, shape.map { Int64($0) }, call)
  }

  /// The dimensions of the tensor.
  public var shape: [Int] {
    get throws { try tensorTypeAndShapeInfo().shape.map(\.intValue) }
  }

  /// A copy of the elements, row by row.
  ///
  /// - Throws: `NSError` of the domain `onnxruntime` when the elements are of another type.
  public func array<Element: ORTElement>(of type: Element.Type) throws -> [Element] {
    try reading("ORTValue.array(of:)", type) { Array($0) }
  }

  /// Calls a function with the elements, row by row, without a copy. They are valid until the function returns.
  ///
  /// - Throws: `NSError` of the domain `onnxruntime` when the elements are of another type.
  public func withUnsafeElements<Element: ORTElement, Result>(
    of type: Element.Type, _ body: (UnsafeMutableBufferPointer<Element>) throws -> Result
  ) throws -> Result {
    try reading("ORTValue.withUnsafeElements(of:_:)", type, body)
  }

  /// Calls a function with the bytes of the elements, without a copy. They are valid until the function returns.
  public func withUnsafeBytes<Result>(_ body: (UnsafeRawBufferPointer) throws -> Result) throws -> Result {
    defer { withExtendedLifetime(self) {} }
    return try body(UnsafeRawBufferPointer(try elements(Call("ORTValue.withUnsafeBytes(_:)"))))
  }

  /// Calls a function with the bytes of the elements, which it may change. They are valid until the function returns.
  public func withUnsafeMutableBytes<Result>(_ body: (UnsafeMutableRawBufferPointer) throws -> Result) throws -> Result {
    defer { withExtendedLifetime(self) {} }
    return try body(try elements(Call("ORTValue.withUnsafeMutableBytes(_:)")))
  }

  private func reading<Element: ORTElement, Result>(
    _ method: StaticString, _ type: Element.Type, _ body: (UnsafeMutableBufferPointer<Element>) throws -> Result
  ) throws -> Result {
    defer { withExtendedLifetime(self) {} }
    let call = Call(method)
    let found = try tensorTypeAndShapeInfo().elementType
    if found != type.elementType {
      throw call.refusal("expected a tensor of \(type.elementType), found one of \(found)")
    }
    return try body(try elements(call).assumingMemoryBound(to: type))
  }
}
