// The training loop reproduces the recorded runs.
import Foundation
import Testing
import onnxruntime_training_objc

@Suite struct TrainingTests {
  func repeated(_ run: Run, _ session: ORTTrainingSession) throws {
    let record = try run.record()
    if let schedule = record.scheduler {
      // As it ran: its counts were passed in the wrong order.
      try session.registerLinearLRScheduler(
        withWarmupStepCount: schedule.total, totalStepCount: schedule.warmup, initialLr: schedule.initial_lr)
    }
    for (i, recorded) in record.train_losses.enumerated() {
      #expect(abs(Double(try session.getLearningRate()) - record.learning_rates[i]) < 1e-7)
      let loss = Double(try session.trainStep(withInputValues: try run.batch(i))[0].array(of: Float.self)[0])
      #expect(abs(loss - recorded) <= 1e-4 * abs(recorded), "step \(i)")
      try session.optimizerStep()
      if record.scheduler != nil { try session.schedulerStep() }
      try session.lazyResetGrad()
    }
  }

  @Test(arguments: Run.all) func recordedRunsAreRepeated(_ run: Run) throws {
    let state = try run.state()
    let session = try run.session(state)
    try repeated(run, session)
    let record = try run.record()
    for (i, recorded) in (record.eval_losses ?? []).enumerated() {
      let loss = Double(try session.evalStep(withInputValues: try run.batch(i))[0].array(of: Float.self)[0])
      #expect(abs(loss - recorded) <= 1e-4 * abs(recorded), "eval \(i)")
    }
    #expect(Set(try state.getParameterNames()).isSuperset(of: record.parameters.keys))
    for (name, recorded) in record.parameters {
      let parameter = try state.getParameter(withName: name)
      let squares = try parameter.array(of: Float.self).reduce(0.0) { $0 + Double($1) * Double($1) }
      #expect(abs(squares.squareRoot() - recorded.l2) <= 1e-3 * (1 + recorded.l2), "\(name)")
      #expect(try parameter.shape == recorded.shape)
    }
  }

  @Test func modelsInMemoryTrainAsThoseInFilesDo() throws {
    let run = Run.mlp
    let inMemory = try ORTTrainingSession(
      env: try ORTEnv(loggingLevel: .error), sessionOptions: nil,
      checkpoint: try ORTCheckpoint(data: try run.data("checkpoint")),
      trainModelData: try run.data("training_model.onnx"), evalModelData: try run.data("eval_model.onnx"),
      optimizerModelData: try run.data("optimizer_model.onnx"))
    let inFiles = try run.session()
    for session in [inMemory, inFiles] { try repeated(run, session) }
    let ours = try inMemory.toBuffer(withTrainable: false).array(of: Float.self)
    #expect(ours == (try inFiles.toBuffer(withTrainable: false).array(of: Float.self)))
  }

  @Test func aBufferGoesOutAndComesBack() throws {
    let state = try Run.mlp.state()
    let session = try Run.mlp.session(state)
    let buffer = try session.toBuffer(withTrainable: true)
    let before = try buffer.array(of: Float.self)
    try buffer.withUnsafeElements(of: Float.self) { elements in
      for i in elements.indices { elements[i] *= 2 }
    }
    try session.fromBuffer(with: buffer)
    #expect(try session.toBuffer(withTrainable: true).array(of: Float.self) == before.map { 2 * $0 })
  }

  @Test func gradientsAddUpUntilTheyAreReset() throws {
    let state = try Run.mlp.state()
    let session = try Run.mlp.session(state)
    let name = try #require(try state.getParameterNames().first { try state.isParameterTrainable(withParameterName: $0) })
    func gradient() throws -> [Float] {
      try session.trainStep(withInputValues: try Run.mlp.batch(0))
      return try state.getParameterGradient(withParameterName: name).array(of: Float.self)
    }
    let once = try gradient()
    let twice = try gradient()
    #expect(once.contains { $0 != 0 })
    for (a, b) in zip(once, twice) { #expect(abs(2 * a - b) <= 1e-5 * (1 + abs(b))) }
    try session.lazyResetGrad()
    #expect(try gradient() == once)
  }

  @Test func propertiesAndCheckpoints() throws {
    let state = try Run.mlp.state()
    try state.addIntProperty(withName: "i", value: .max)
    try state.addFloatProperty(withName: "f", value: 0.25)
    try state.addStringProperty(withName: "s", value: "Übergröße-字")
    let path = NSTemporaryDirectory() + "swift-\(UUID().uuidString)"
    defer { try? FileManager.default.removeItem(atPath: path) }
    try state.saveCheckpoint(toPath: path, withOptimizerState: true)
    let read = try ORTCheckpoint(path: path)
    #expect(try read.getIntProperty(withName: "i") == .max)
    #expect(try read.getFloatProperty(withName: "f") == 0.25)
    #expect(try read.getStringProperty(withName: "s") == "Übergröße-字")
    #expect(try read.getPropertyNames() == ["f", "i", "s"])
    #expect(try read.getPropertyType(withPropertyName: "f") == .float)
  }

  @Test func anExportedModelRuns() throws {
    let session = try Run.mlp.session()
    let path = NSTemporaryDirectory() + "swift-\(UUID().uuidString).onnx"
    defer { try? FileManager.default.removeItem(atPath: path) }
    try session.exportModelForInference(withOutputPath: path, graphOutputNames: ["output"])
    let model = try ORTSession(env: try ORTEnv(loggingLevel: .error), modelPath: path, sessionOptions: nil)
    let name = try model.inputNames()[0]
    let x = try Run.mlp.batch(0)[0]
    let found = try model.run(withInputs: [name: x], outputNames: ["output"], runOptions: nil)
    let scores = try #require(found["output"])
    #expect(try scores.shape == [try x.shape[0], 10])
    let into = try ORTValue([Float](repeating: 0, count: 10 * (try x.shape[0])), shape: try scores.shape)
    try model.run(withInputs: [name: x], outputs: ["output": into], runOptions: try ORTRunOptions())
    #expect(try into.array(of: Float.self) == (try scores.array(of: Float.self)))
  }

  @Test func aModelWithGradientsIsBuilt() throws {
    let session = try Run.mlp.session()
    let path = NSTemporaryDirectory() + "swift-\(UUID().uuidString).onnx"
    defer { try? FileManager.default.removeItem(atPath: path) }
    try session.exportModelForInference(withOutputPath: path, graphOutputNames: ["output"])
    let forward = try Data(contentsOf: URL(fileURLWithPath: path))
    let env = try ORTEnv(loggingLevel: .error)
    let input = try ORTSession(env: env, modelData: forward, sessionOptions: nil).inputNames()[0]
    let builder = try ORTGradientGraphBuilder(model: forward, yNodeNames: ["output"], xNodeNames: [input], lossNodeName: "")
    try builder.build()
    let model = try ORTSession(env: env, modelData: try builder.getModel(), sessionOptions: nil)
    #expect(try model.outputNames() == ["output", "\(input)_grad"])
    #expect(try model.inputNames() == [input, "output_grad"])
  }
}
