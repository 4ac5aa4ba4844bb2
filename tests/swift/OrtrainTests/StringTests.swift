// Tensors of strings, execution providers that are not there, and custom operators.
import Foundation
import Testing
import onnxruntime_training_objc

@Suite struct StringTests {
  // A model that gives its input of strings back: Identity from x to y, as ONNX.
  static let identity = Data([
    8, 8, 58, 57, 10, 16, 10, 1, 120, 18, 1, 121, 34, 8, 73, 100, 101, 110, 116, 105, 116, 121, 18, 1, 103, 90, 16, 10, 1, 120,
    18, 11, 10, 9, 8, 8, 18, 5, 10, 3, 18, 1, 110, 98, 16, 10, 1, 121, 18, 11, 10, 9, 8, 8, 18, 5, 10, 3, 18, 1, 110, 66, 4, 10,
    0, 16, 17,
  ])

  @Test func stringsAreWhatTheyWere() throws {
    let strings = ["one", "", "dréi €", "a string that is longer than the others"]
    let value = try ORTValue(tensorStringData: strings, shape: [2, 2])
    #expect(try value.tensorStringData() == strings)
    #expect(try value.tensorTypeAndShapeInfo().elementType == .string)
    #expect(try value.shape == [2, 2])
    #expect(try ORTValue(strings, shape: [4]).tensorStringData() == strings)
    #expect(try ORTValue([String](), shape: [0, 3]).tensorStringData() == [])
    #expect(try ORTValue(tensorStringData: ["scalar"], shape: []).tensorStringData() == ["scalar"])
  }

  @Test func wrongStringsAreRefused() throws {
    expectFailure(.invalidArgument, "FillStringTensor", "found 1") {
      _ = try ORTValue(tensorStringData: ["one"], shape: [2])
    }
    expectFailure(.invalidArgument, "argument tensorStringData, element 1", "null character") {
      _ = try ORTValue(tensorStringData: ["one", "t\0wo"], shape: [2])
    }
    expectFailure(.invalidArgument, "argument shape, element 0: expected a 64-bit integer, found 1.5") {
      _ = try ORTValue(tensorStringData: ["one"], shape: [1.5])
    }
    expectFailure(.invalidArgument, "-1") { _ = try ORTValue(["one"], shape: [-1]) }
    expectFailure(.invalidArgument, "string") { _ = try ORTValue([Float(1)], shape: [1]).tensorStringData() }
    expectFailure(.invalidArgument, "string") { _ = try ORTValue(["one"], shape: [1]).tensorData() }
    expectFailure(.invalidArgument, "string") { _ = try ORTValue(["one"], shape: [1]).withUnsafeBytes { $0.count } }
  }

  @Test func aSessionRunsOnStringsAfterItsEnvironmentAndOptionsAreGone() throws {
    var env: ORTEnv? = try ORTEnv(loggingLevel: .fatal)
    var options: ORTSessionOptions? = try ORTSessionOptions()
    let session = try ORTSession(env: try #require(env), modelData: Self.identity, sessionOptions: options)
    (env, options) = (nil, nil)
    let outputs = try session.run(
      withInputs: ["x": try ORTValue(["in", "and out"], shape: [2])], outputNames: ["y"], runOptions: nil)
    #expect(try #require(outputs["y"]).tensorStringData() == ["in", "and out"])
    _ = (env, options)
  }

  @Test func aMissingProviderIsRefusedWithTheNamesOfThoseThatAreThere() throws {
    #expect(!ORTIsCoreMLExecutionProviderAvailable())
    let options = try ORTSessionOptions()
    expectFailure(.invalidArgument, "Toaster", "CPUExecutionProvider") {
      try options.appendExecutionProvider("Toaster", providerOptions: ["heat": "3"])
    }
    try options.appendExecutionProvider("CPUExecutionProvider", providerOptions: [:])
    let coreML = ORTCoreMLExecutionProviderOptions()
    coreML.useCPUOnly = true
    expectFailure(.invalidArgument, "CoreML", "CPUExecutionProvider") {
      try options.appendCoreMLExecutionProvider(with: coreML)
    }
    expectFailure(.invalidArgument, "CoreML", "CPUExecutionProvider") {
      try options.appendCoreMLExecutionProvider(withOptionsV2: ["ModelFormat": "MLProgram"])
    }
    expectFailure(.invalidArgument, "appendCoreMLExecutionProvider(withOptionsV2:)", "expected strings, found ModelFormat: 1") {
      try options.appendCoreMLExecutionProvider(withOptionsV2: ["ModelFormat": 1])
    }
    let xnnpack = ORTXnnpackExecutionProviderOptions()
    xnnpack.intra_op_num_threads = 2
    expectFailure(.invalidArgument, "XNNPACK", "CPUExecutionProvider") {
      try options.appendXnnpackExecutionProvider(with: xnnpack)
    }
  }

  nonisolated(unsafe) static var given: (OpaquePointer?, OpaquePointer?)

  @Test func functionsRegisterCustomOperators() throws {
    let options = try ORTSessionOptions()
    try options.registerCustomOps(usingFunctionPointer: { options, api in
      StringTests.given = (options, api)
      return nil
    })
    #expect(Self.given.0 != nil && Self.given.1 != nil)
    expectFailure(.fail, "NeverHeard") { try options.registerCustomOps(usingFunction: "NeverHeard") }
    expectFailure(.fail, "extensions") { try options.enableOrtExtensionsCustomOps() }
  }
}
