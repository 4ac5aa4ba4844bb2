// Tensors over the caller's memory and over memory of the library.
import Foundation
import Testing
import onnxruntime_training_objc

@Suite struct ValueTests {
  @Test func aTensorSharesTheDataOfTheCaller() throws {
    let data = NSMutableData(length: 4 * MemoryLayout<Float>.size)!
    let value = try ORTValue(tensorData: data, elementType: .float, shape: [2, 2])
    data.mutableBytes.storeBytes(of: 1.5, toByteOffset: 4, as: Float.self)
    #expect(try value.array(of: Float.self) == [0, 1.5, 0, 0])
    #expect(try value.tensorData() === data)
    try value.withUnsafeMutableBytes { $0.storeBytes(of: 2.5, toByteOffset: 8, as: Float.self) }
    #expect(data.bytes.load(fromByteOffset: 8, as: Float.self) == 2.5)
    let info = try value.tensorTypeAndShapeInfo()
    #expect(info.elementType == .float)
    #expect(info.shape == [2, 2])
    let type = try value.typeInfo()
    #expect(type.type == .tensor)
    #expect(type.tensorTypeAndShapeInfo?.shape == [2, 2])
  }

  @Test func aTensorKeepsItsDataAlive() throws {
    weak var watched: NSMutableData?
    var value: ORTValue?
    do {
      let data = NSMutableData(length: 64)!
      watched = data
      value = try ORTValue(tensorData: data, elementType: .float, shape: [16])
    }
    #expect(watched != nil)
    value = nil
    #expect(watched == nil)
    _ = value
  }

  @Test func dataOfAnotherLengthIsRefused() throws {
    let session = try Run.mlp.session()
    let batch = try Run.mlp.batch(0)
    let data = NSMutableData(length: 16 * 64 * 4)!
    let x = try ORTValue(tensorData: data, elementType: .float, shape: [16, 64])
    try session.trainStep(withInputValues: [x, batch[1]])
    data.length = 8
    expectFailure(
      .invalidArgument, "ORTTrainingSession.trainStep(withInputValues:)", "argument inputs, element 0",
      "expected 4096 bytes at the same address, found 8"
    ) { try session.trainStep(withInputValues: [x, batch[1]]) }
    expectFailure(.invalidArgument, "ORTValue.tensorData()", "found 8") { _ = try x.tensorData() }
    expectFailure(.invalidArgument, "found 8") { _ = try x.array(of: Float.self) }
  }

  @Test func dataOfTheLibraryOutlivesItsTensor() throws {
    var output: ORTValue? = try Run.mlp.session().trainStep(withInputValues: try Run.mlp.batch(0))[0]
    let loss = try #require(output).array(of: Float.self)[0]
    let data = try #require(output).tensorData()
    try #require(output).withUnsafeBytes { #expect($0.baseAddress == data.bytes) }
    weak var watched: ORTValue?
    watched = output
    output = nil
    #expect(watched != nil, "the data keeps it alive")
    #expect(data.length == 4)
    #expect(data.bytes.load(as: Float.self) == loss)
    data.length = 8
    #expect(watched == nil, "now it is a copy")
    #expect(data.bytes.load(as: Float.self) == loss)
    #expect(data.bytes.load(fromByteOffset: 4, as: UInt32.self) == 0)
  }

  @Test func arraysGoInAndOut() throws {
    #expect(try ORTValue([1, 2, 3, 4, 5, 6] as [Int64], shape: [2, 3]).array(of: Int64.self) == [1, 2, 3, 4, 5, 6])
    #expect(try ORTValue([true, false], shape: [2]).array(of: Bool.self) == [true, false])
    #expect(try ORTValue([UInt8(255)], shape: []).array(of: UInt8.self) == [255])
    #expect(try ORTValue([Float](), shape: [0, 3]).array(of: Float.self) == [])
    #expect(try ORTValue([Double](repeating: 1, count: 6), shape: [3, 2]).shape == [3, 2])
  }

  @Test func wrongShapesAndTypesAreRefused() throws {
    expectFailure(.invalidArgument, "ORTValue.init(_:shape:)", "expected 4 elements for the shape [2, 2], found 3") {
      _ = try ORTValue([1, 2, 3] as [Float], shape: [2, 2])
    }
    expectFailure(.invalidArgument, "argument shape, element 0", "found -1") { _ = try ORTValue([Float](), shape: [-1]) }
    expectFailure(.invalidArgument, "argument shape, element 1") { _ = try ORTValue([Float](), shape: [.max, .max]) }
    expectFailure(.invalidArgument, "expected a tensor of int64, found one of float") {
      _ = try ORTValue([Float(1)], shape: []).array(of: Int64.self)
    }
    let data = NSMutableData(length: 16)!
    expectFailure(.invalidArgument, "argument shape, element 1: expected a 64-bit integer, found 1.5") {
      _ = try ORTValue(tensorData: data, elementType: .float, shape: [2, 1.5])
    }
    expectFailure(.invalidArgument, "CreateTensorWithDataAsOrtValue") {
      _ = try ORTValue(tensorData: data, elementType: .float, shape: [5])
    }
    expectFailure(.invalidArgument, "CreateTensorWithDataAsOrtValue") {
      _ = try ORTValue(tensorData: data, elementType: .float, shape: [-1])
    }
    #expect(throws: NSError.self) { try ORTValue(tensorData: data, elementType: .undefined, shape: [1]) }
  }

  @Test func objectsMayBeReleasedInAnyOrder() throws {
    var state: ORTCheckpoint? = try Run.mlp.state()
    var session: ORTTrainingSession? = try Run.mlp.session(try #require(state))
    state = nil
    let outputs = try #require(session).trainStep(withInputValues: try Run.mlp.batch(0))
    session = nil
    #expect(try outputs[0].array(of: Float.self)[0] > 0)
    _ = (state, session)
  }
}

@Suite struct DataTests {
  func output() throws -> (ORTValue, NSMutableData) {
    let value = try Run.mlp.session().toBuffer(withTrainable: true)
    return (value, try value.tensorData())
  }

  @Test func foundationReadsAndWritesDataOfTheLibrary() throws {
    let (value, data) = try output()
    let before = try value.array(of: Float.self)
    #expect(data.length == 4 * before.count)
    #expect((data as Data).withUnsafeBytes { Array($0.bindMemory(to: Float.self)) } == before)
    #expect(Data(referencing: data).count == data.length)
    #expect(data.isEqual(to: (data.mutableCopy() as! NSMutableData) as Data))
    var first = Float(7)
    data.replaceBytes(in: NSRange(location: 0, length: 4), withBytes: &first)
    #expect(try value.array(of: Float.self)[0] == 7)
    data.resetBytes(in: NSRange(location: 0, length: 4))
    #expect(try value.array(of: Float.self)[0] == 0)
    #expect(try value.array(of: Float.self)[1...] == before[1...])
  }

  @Test func whatIsAppendedGoesIntoACopy() throws {
    let (value, data) = try output()
    let before = try value.array(of: Float.self)
    data.append(Data([1, 2, 3, 4]))
    #expect(data.length == 4 * before.count + 4)
    #expect(Array((data as Data).suffix(4)) == [1, 2, 3, 4])
    #expect(try value.array(of: Float.self) == before)
    data.replaceBytes(in: NSRange(location: 4 * before.count, length: 3), withBytes: [UInt8(9)], length: 1)
    #expect(Array((data as Data).suffix(2)) == [9, 4])
    data.append(data.bytes, length: 2)
    data.increaseLength(by: 2)
    #expect(data.length == 4 * before.count + 6)
    data.length = 0
    #expect((data as Data).isEmpty)
    #expect(try value.array(of: Float.self) == before)
  }
}
