import COrtrain
import Foundation

/// Whether the execution provider CoreML is available: false.
public func ORTIsCoreMLExecutionProviderAvailable() -> Bool { false }

/// Settings of the execution provider CoreML, which is not available.
public final class ORTCoreMLExecutionProviderOptions {
  public var useCPUOnly = false
  public var useCPUAndGPU = false
  public var enableOnSubgraphs = false
  public var onlyEnableForDevicesWithANE = false
  public var onlyAllowStaticInputShapes = false
  public var createMLProgram = false

  public init() {}
}

/// Settings of the execution provider XNNPACK, which is not available.
public final class ORTXnnpackExecutionProviderOptions {
  public var intra_op_num_threads: Int32 = 0

  public init() {}
}

// Only the provider of the CPU exists. Methods that request another provider fail, and the error lists the available
// ones.
extension ORTSessionOptions {
  /// Requests an execution provider by name.
  ///
  /// - Parameters:
  ///   - providerName: The name, such as CoreML.
  ///   - providerOptions: Its settings by name.
  /// - Throws: `NSError` of the domain `onnxruntime`: `ORTErrorCode.invalidArgument`, naming the execution providers that are
  ///   available.
  public func appendExecutionProvider(_ providerName: String, providerOptions: [String: String]) throws {
    try append(providerName, providerOptions, Call("ORTSessionOptions.appendExecutionProvider(_:providerOptions:)"))
  }

  /// Asks for CoreML, as `appendExecutionProvider(_:providerOptions:)` does.
  public func appendCoreMLExecutionProvider(with options: ORTCoreMLExecutionProviderOptions) throws {
    try append("CoreML", [:], Call("ORTSessionOptions.appendCoreMLExecutionProvider(with:)"))
  }

  /// Asks for CoreML, as `appendExecutionProvider(_:providerOptions:)` does.
  public func appendCoreMLExecutionProvider(withOptionsV2 providerOptions: [AnyHashable: Any]) throws {
    let call = Call("ORTSessionOptions.appendCoreMLExecutionProvider(withOptionsV2:)")
    var settings: [String: String] = [:]
    for (name, value) in providerOptions {
      guard let name = name as? String, let value = value as? String else {
        throw call.refusal("argument providerOptions: expected strings, found \(name): \(value)")
      }
      settings[name] = value
    }
    try append("CoreML", settings, call)
  }

  /// Asks for XNNPACK, as `appendExecutionProvider(_:providerOptions:)` does.
  public func appendXnnpackExecutionProvider(with options: ORTXnnpackExecutionProviderOptions) throws {
    try append("XNNPACK", [:], Call("ORTSessionOptions.appendXnnpackExecutionProvider(with:)"))
  }

  private func append(_ provider: String, _ settings: [String: String], _ call: Call) throws {
    defer { withExtendedLifetime(self) {} }
    let name = try call.text(provider, "providerName")
    defer { free(name) }
    let pairs = Array(settings)
    let keys = try call.texts(pairs.map(\.key), "providerOptions")
    defer { keys.free() }
    let values = try call.texts(pairs.map(\.value), "providerOptions")
    defer { values.free() }
    try call.check(
      Tables.general.pointee.SessionOptionsAppendExecutionProvider(
        handle, name, keys.pointers, values.pointers, keys.count))
  }
}

/// A function that adds custom operators to options: it takes the `OrtSessionOptions` and the `OrtApiBase` of C, and returns the
/// `OrtStatus`, nil on success.
public typealias ORTCAPIRegisterCustomOpsFnPtr = @convention(c) (OpaquePointer?, OpaquePointer?) -> OpaquePointer?

extension ORTSessionOptions {
  /// Calls a function that adds custom operators to the options.
  ///
  /// - Parameters:
  ///   - registerCustomOpsFn: The function, which is called at once.
  /// - Throws: `NSError` of the domain `onnxruntime` with the status that the function returns.
  public func registerCustomOps(usingFunctionPointer registerCustomOpsFn: ORTCAPIRegisterCustomOpsFnPtr) throws {
    defer { withExtendedLifetime(self) {} }
    try Call("ORTSessionOptions.registerCustomOps(usingFunctionPointer:)").check(
      registerCustomOpsFn(handle, OpaquePointer(OrtGetApiBase())))
  }
}
