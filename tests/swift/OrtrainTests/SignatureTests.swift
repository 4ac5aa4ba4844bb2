// Every declaration that programs of the discontinued package call, with its type: this file compiles, or the API has changed.
import Foundation
import Testing
import onnxruntime_training_objc

@Suite struct SignatureTests {
  @Test func declarations() {
    typealias Session = ORTTrainingSession
    let _: (ORTEnv, ORTSessionOptions, ORTCheckpoint, String, String?, String?) throws -> Session = Session.init(
      env:sessionOptions:checkpoint:trainModelPath:evalModelPath:optimizerModelPath:)
    let _: (Session) -> ([ORTValue]) throws -> [ORTValue] = Session.trainStep(withInputValues:)
    let _: (Session) -> ([ORTValue]) throws -> [ORTValue] = Session.evalStep(withInputValues:)
    let _: (Session) -> () throws -> Void = Session.lazyResetGrad
    let _: (Session) -> () throws -> Void = Session.optimizerStep
    let _: (Session) -> () throws -> [String] = Session.getTrainInputNames
    let _: (Session) -> () throws -> [String] = Session.getEvalInputNames
    let _: (Session) -> () throws -> [String] = Session.getTrainOutputNames
    let _: (Session) -> () throws -> [String] = Session.getEvalOutputNames
    let _: (Session) -> (Int64, Int64, Float) throws -> Void = Session.registerLinearLRScheduler(
      withWarmupStepCount:totalStepCount:initialLr:)
    let _: (Session) -> () throws -> Void = Session.schedulerStep
    let _: (Session) -> () throws -> Float = Session.getLearningRate
    let _: (Session) -> (Float) throws -> Void = Session.setLearningRate(_:)
    let _: (Session) -> (ORTValue) throws -> Void = Session.fromBuffer(with:)
    let _: (Session) -> (Bool) throws -> ORTValue = Session.toBuffer(withTrainable:)
    let _: (Session) -> (String, [String]) throws -> Void = Session.exportModelForInference(withOutputPath:graphOutputNames:)

    typealias State = ORTCheckpoint
    let _: (String) throws -> State = State.init(path:)
    let _: (State) -> (String, Bool) throws -> Void = State.saveCheckpoint(toPath:withOptimizerState:)
    let _: (State) -> (String, Int64) throws -> Void = State.addIntProperty(withName:value:)
    let _: (State) -> (String, Float) throws -> Void = State.addFloatProperty(withName:value:)
    let _: (State) -> (String, String) throws -> Void = State.addStringProperty(withName:value:)
    let _: (State) -> (String) throws -> Int64 = State.getIntProperty(withName:)
    let _: (State) -> (String) throws -> Float = State.getFloatProperty(withName:)
    let _: (State) -> (String) throws -> String? = State.getStringProperty(withName:)

    let _: (ORTLoggingLevel) throws -> ORTEnv = ORTEnv.init(loggingLevel:)
    let _: () throws -> ORTSessionOptions = ORTSessionOptions.init
    typealias Options = ORTSessionOptions
    let _: (Options) -> (String, [String: String]) throws -> Void = Options.appendExecutionProvider(_:providerOptions:)
    let _: (Options) -> (ORTCoreMLExecutionProviderOptions) throws -> Void = Options.appendCoreMLExecutionProvider(with:)
    let _: (Options) -> ([AnyHashable: Any]) throws -> Void = Options.appendCoreMLExecutionProvider(withOptionsV2:)
    let _: (Options) -> (ORTXnnpackExecutionProviderOptions) throws -> Void = Options.appendXnnpackExecutionProvider(with:)
    let _: (Options) -> (ORTCAPIRegisterCustomOpsFnPtr) throws -> Void = Options.registerCustomOps(usingFunctionPointer:)
    let _: (Options) -> (String) throws -> Void = Options.registerCustomOps(usingFunction:)
    let _: () -> Bool = ORTIsCoreMLExecutionProviderAvailable
    let _: () throws -> ORTRunOptions = ORTRunOptions.init
    let _: (NSMutableData, ORTTensorElementDataType, [NSNumber]) throws -> ORTValue = ORTValue.init(
      tensorData:elementType:shape:)
    let _: (ORTValue) -> () throws -> NSMutableData = ORTValue.tensorData
    let _: ([String], [NSNumber]) throws -> ORTValue = ORTValue.init(tensorStringData:shape:)
    let _: (ORTValue) -> () throws -> [String] = ORTValue.tensorStringData
    let _: (ORTValue) -> () throws -> ORTTensorTypeAndShapeInfo = ORTValue.tensorTypeAndShapeInfo
    let _: (ORTValue) -> () throws -> ORTValueTypeInfo = ORTValue.typeInfo
    let _: (ORTEnv, String, ORTSessionOptions?) throws -> ORTSession = ORTSession.init(env:modelPath:sessionOptions:)
    let _: (ORTSession) -> ([String: ORTValue], Set<String>, ORTRunOptions?) throws -> [String: ORTValue] = ORTSession.run(
      withInputs:outputNames:runOptions:)
    let _: (Int64) -> Void = ORTSetSeed
    let _: [ORTTensorElementDataType] = [.float, .double, .int8, .uInt8, .int32, .uInt32, .int64, .uInt64, .string]
    let _: [ORTLoggingLevel] = [.verbose, .info, .warning, .error, .fatal]
  }
}
