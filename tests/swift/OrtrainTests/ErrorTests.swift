// Bad input results in an NSError that says what was wrong, never in a crash.
import Foundation
import Testing
import onnxruntime_training_objc

@Suite struct ErrorTests {
  @Test func files() throws {
    expectFailure(.noSuchFile, "LoadCheckpoint", "/nowhere/at all") { _ = try ORTCheckpoint(path: "/nowhere/at all") }
    expectFailure(.fail, "LoadCheckpoint") { _ = try ORTCheckpoint(path: Run.mlp.path("training_model.onnx")) }
    expectFailure(.fail, "LoadCheckpointFromBuffer") { _ = try ORTCheckpoint(data: Data()) }
    let state = try Run.mlp.state()
    expectFailure(.fail, "SaveCheckpoint", "/nowhere/at all") {
      try state.saveCheckpoint(toPath: "/nowhere/at all", withOptimizerState: true)
    }
  }

  @Test func textsThatCHasNoFormOf() throws {
    let state = try Run.mlp.state()
    expectFailure(
      .invalidArgument, "ORTCheckpoint.addIntProperty(withName:value:)",
      "argument name: expected a string, found a null character"
    ) { try state.addIntProperty(withName: "a\0b", value: 1) }
    expectFailure(.invalidArgument, "argument value", "null character") {
      try state.addStringProperty(withName: "a", value: "a\0b")
    }
    let session = try Run.mlp.session(state)
    expectFailure(.invalidArgument, "argument graphOutputNames, element 1", "null character") {
      try session.exportModelForInference(withOutputPath: "/nowhere", graphOutputNames: ["output", "a\0b"])
    }
  }

  @Test func sessions() throws {
    let env = try ORTEnv(loggingLevel: .error)
    let state = try Run.mlp.state()
    let model = Run.mlp.path("training_model.onnx")
    func make(_ state: ORTCheckpoint, _ train: String, _ eval: String?, _ optimizer: String?) throws {
      _ = try ORTTrainingSession(
        env: env, sessionOptions: nil, checkpoint: state, trainModelPath: train, evalModelPath: eval,
        optimizerModelPath: optimizer)
    }
    expectFailure(.noSuchFile, "/nowhere") { try make(state, "/nowhere", nil, nil) }
    expectFailure(.noSuchFile, "/nowhere") { try make(state, model, "/nowhere", nil) }
    expectFailure(.noSuchFile, "/nowhere") { try make(state, model, nil, "/nowhere") }
    expectFailure(.invalidProtobuf, "CreateTrainingSession") { try make(state, Run.mlp.path("checkpoint"), nil, nil) }
    expectFailure(.invalidArgument, "CreateTrainingSession") { try make(try Run.all[2].state(), model, nil, nil) }
    expectFailure(.invalidArgument, "argument trainModelPath", "null character") { try make(state, "a\0", nil, nil) }
  }

  @Test func inputsOfAStep() throws {
    let session = try Run.mlp.session()
    let batch = try Run.mlp.batch(0)
    let (x, y) = (batch[0], batch[1])
    for wrong in [[], [x], [x, y, y], [y, x]] {
      expectFailure(.invalidArgument, "TrainStep") { try session.trainStep(withInputValues: wrong) }
    }
    let narrow = try ORTValue([Float](repeating: 0, count: 16 * 63), shape: [16, 63])
    expectFailure(.invalidArgument, "63") { try session.trainStep(withInputValues: [narrow, y]) }
    let wide = try ORTValue([Double](repeating: 0, count: 16 * 64), shape: [16, 64])
    expectFailure(.invalidArgument, "float64") { try session.trainStep(withInputValues: [wide, y]) }
    expectFailure(.invalidArgument, "EvalStep") { try session.evalStep(withInputValues: [x]) }
    #expect(try session.trainStep(withInputValues: batch).count == 1, "after all that a step still works")
  }

  @Test func callsInTheWrongOrder() throws {
    let state = try Run.mlp.state()
    expectFailure(.runtimeException, "CheckpointGetParameterGradient") {
      _ = try state.getParameterGradient(withParameterName: try state.getParameterNames()[0])
    }
    let session = try Run.mlp.session(state)
    expectFailure(.runtimeException, "SchedulerStep") { try session.schedulerStep() }
    let bare = try ORTTrainingSession(
      env: try ORTEnv(loggingLevel: .error), sessionOptions: nil, checkpoint: try Run.mlp.state(),
      trainModelPath: Run.mlp.path("training_model.onnx"), evalModelPath: nil, optimizerModelPath: nil)
    #expect(throws: NSError.self) { try bare.evalStep(withInputValues: try Run.mlp.batch(0)) }
    #expect(throws: NSError.self) { try bare.optimizerStep() }
    #expect(throws: NSError.self) { try bare.exportModelForInference(withOutputPath: "/tmp/x", graphOutputNames: ["output"]) }
  }

  @Test func properties() throws {
    let state = try Run.mlp.state()
    try state.addIntProperty(withName: "i", value: 1)
    expectFailure(.invalidArgument, "ORTCheckpoint.getFloatProperty(withName:)", "property i: expected a float, found an integer")
    {
      _ = try state.getFloatProperty(withName: "i")
    }
    expectFailure(.invalidArgument, "expected a string, found an integer") { _ = try state.getStringProperty(withName: "i") }
    expectFailure(.invalidArgument, "nothing") { _ = try state.getIntProperty(withName: "nothing") }
    expectFailure(.invalidArgument, "nothing") { _ = try state.getParameter(withName: "nothing") }
    expectFailure(.invalidArgument, "fc1.bias") {
      try state.updateParameter(withName: "fc1.bias", value: try ORTValue([Float(1)], shape: [1]))
    }
  }

  @Test func indicesAndNames() throws {
    let session = try Run.mlp.session()
    expectFailure(.invalidArgument, "GetModelInputTypeInfo") {
      _ = try session.getModelInputTypeInfo(withTraining: true, index: .max)
    }
    let options = try ORTSessionOptions()
    expectFailure(.invalidArgument, "ortrain.nothing") { try options.addConfigEntry(withKey: "ortrain.nothing", value: "1") }
    try options.addConfigEntry(withKey: "a", value: "Größe")
    #expect(try options.getConfigEntry(withKey: "a") == "Größe")
    #expect(try options.hasConfigEntry(withKey: "a"))
    #expect(try !options.hasConfigEntry(withKey: "b"))
    #expect(throws: NSError.self) { try options.getConfigEntry(withKey: "b") }
  }

  @Test func aTerminatedRunSaysSo() throws {
    let session = try Run.mlp.session()
    let options = try ORTRunOptions()
    let batch = try Run.mlp.batch(0)
    let outputs = try session.trainStep(withInputValues: batch)
    try options.setTerminate(true)
    #expect(throws: NSError.self) { try session.trainStep(withInputValues: batch, outputValues: outputs, runOptions: options) }
    try options.setTerminate(false)
    try session.trainStep(withInputValues: batch, outputValues: outputs, runOptions: options)
  }
}
