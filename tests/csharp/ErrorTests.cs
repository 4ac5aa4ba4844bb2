using System;
using System.Collections.Generic;
using System.IO;
using System.Linq;
using System.Text;
using Microsoft.ML.OnnxRuntime;
using Microsoft.ML.OnnxRuntime.Tensors;
using NUnit.Framework;

/// <summary>Errors are thrown as exceptions that say what is wrong, and everything keeps working afterwards.</summary>
[TestFixture]
public class ErrorTests
{
    private Fixture fixture;
    private CheckpointState state;
    private TrainingSession session;

    [SetUp]
    public void MakeASession()
    {
        fixture = new Fixture("mlp_adamw");
        state = fixture.LoadState();
        session = fixture.MakeSession(state);
    }

    [TearDown]
    public void TheSessionStillWorks()
    {
        session.LazyResetGrad();
        using (var outputs = session.TrainStep(fixture.Values(0)))
        {
            float loss = outputs[0].GetTensorDataAsSpan<float>()[0];
            Assert.That(loss, Is.EqualTo(fixture.Numbers("train_losses")[0]).Within(1e-3));
        }
        session.Dispose();
        state.Dispose();
    }

    [Test]
    public void MissingFilesAreNamed()
    {
        Refused(ErrorCode.NoSuchFile, "nowhere/checkpoint", () => CheckpointState.LoadCheckpoint("nowhere/checkpoint"));
        Refused(ErrorCode.NoSuchFile, "none.onnx", () => new TrainingSession(state, "none.onnx", null));
        Refused(
            ErrorCode.NoSuchFile, "none.onnx", () => new TrainingSession(state, fixture.TrainModel, "none.onnx", null));
        Refused(ErrorCode.NoSuchFile, "none.onnx", () => new TrainingSession(state, fixture.TrainModel, "none.onnx"));
    }

    [Test]
    public void FilesOfAnotherKindAreRefused()
    {
        Refused(ErrorCode.Fail, "checkpoint", () => CheckpointState.LoadCheckpoint(fixture.TrainModel));
        Refused(ErrorCode.Fail, "checkpoint", () => CheckpointState.LoadCheckpointFromBuffer(new byte[0]));
        Refused(ErrorCode.Fail, "checkpoint", () => CheckpointState.LoadCheckpointFromBuffer(new byte[] { 1, 2, 3 }));
        Refused(ErrorCode.InvalidProtobuf, "", () => new TrainingSession(state, fixture.PathOf("expected.txt"), null));
        Refused(ErrorCode.InvalidArgument, "", () => new TrainingSession(state, fixture.OptimizerModel, null));
    }

    [Test]
    public void NullArgumentsAreNamed()
    {
        IsNull("checkpointPath", () => CheckpointState.LoadCheckpoint(null));
        IsNull("buffer", () => CheckpointState.LoadCheckpointFromBuffer(null));
        IsNull("state", () => CheckpointState.SaveCheckpoint(null, "x"));
        IsNull("checkpointPath", () => CheckpointState.SaveCheckpoint(state, null));
        IsNull("propertyName", () => state.AddProperty(null, 1L));
        IsNull("propertyValue", () => state.AddProperty("x", null));
        IsNull("propertyName", () => state.GetProperty(null));
        IsNull("parameterName", () => state.GetParameter(null));
        IsNull("parameter", () => state.UpdateParameter("fc1.bias", null));
        IsNull("state", () => new TrainingSession(null, "x", "y"));
        IsNull("state", () => new TrainingSession(null, null, "x", "y", "z"));
        IsNull("trainModelPath", () => new TrainingSession(state, null, "y"));
        IsNull("inputValues", () => session.TrainStep((IReadOnlyCollection<OrtValue>)null));
        IsNull("inputValues", () => session.EvalStep((IReadOnlyCollection<FixedBufferOnnxValue>)null));
        IsNull("outputValues", () => session.TrainStep(fixture.Buffers(0), null));
        IsNull("inputValues[1]", () => session.TrainStep(new[] { fixture.Values(0)[0], null }));
        IsNull("inputValues[0]", () => session.TrainStep(new FixedBufferOnnxValue[] { null, null }));
        IsNull("outputValues[0]", () => session.TrainStep(fixture.Buffers(0), new FixedBufferOnnxValue[] { null }));
        IsNull("inferenceModelPath", () => session.ExportModelForInferencing(null, new[] { "output" }));
        IsNull("graphOutputNames", () => session.ExportModelForInferencing("x", null));
        IsNull("graphOutputNames[1]", () => session.ExportModelForInferencing("x", new[] { "output", null }));
        IsNull("ortValue", () => session.FromBuffer(null, true));
        IsNull("data", () => OrtValue.CreateTensorValueFromMemory<float>(null, new long[] { 1 }));
        IsNull("shape", () => OrtValue.CreateTensorValueFromMemory(new float[1], null));
        IsNull("memoryInfo", () => OrtValue.CreateTensorValueFromMemory(null, new Memory<float>(), new long[] { 0 }));
        IsNull("allocator", () => OrtValue.CreateAllocatedTensorValue(null, TensorElementType.Float, new long[0]));
        IsNull("value", () => FixedBufferOnnxValue.CreateFromTensor<float>(null));
        IsNull("key", () => new SessionOptions().AddSessionConfigEntry(null, "x"));
        IsNull("value", () => new SessionOptions().LogId = null);
        IsNull("array", () => ((float[])null).ToTensor());
    }

    [Test]
    public void ZeroCharactersInTextsAreRefused()
    {
        var error = Assert.Throws<ArgumentException>(() => state.AddProperty("a\0b", 1L));
        Assert.That(error.ParamName, Is.EqualTo("propertyName"));
        StringAssert.Contains("position 1", error.Message);
    }

    [Test]
    public void TextsAndPathsWithHalfACharacterAreRefused()
    {
        Assert.Throws<EncoderFallbackException>(() => state.AddProperty("a\uD800", 1L));
        Assert.Throws<EncoderFallbackException>(() => CheckpointState.LoadCheckpoint("a\uD800"));
    }

    [Test]
    public void InputsThatDoNotFitAreNamed()
    {
        List<OrtValue> good = fixture.Values(0);
        Refused(ErrorCode.InvalidArgument, "", () => session.TrainStep(new OrtValue[0]));
        Refused(ErrorCode.InvalidArgument, "", () => session.TrainStep(new[] { good[0] }));
        Refused(ErrorCode.InvalidArgument, "input", () => session.TrainStep(new[] { good[1], good[0] }));
        OrtValue narrow = OrtValue.CreateTensorValueFromMemory(new float[16 * 63], new long[] { 16, 63 });
        Refused(ErrorCode.InvalidArgument, "63", () => session.TrainStep(new[] { narrow, good[1] }));
        OrtValue wide = OrtValue.CreateTensorValueFromMemory(new double[16 * 64], new long[] { 16, 64 });
        Refused(ErrorCode.InvalidArgument, "float64", () => session.EvalStep(new[] { wide, good[1] }));
    }

    [Test]
    public void OutputsThatDoNotFitAreRefused()
    {
        foreach (int[] shape in new[] { new[] { 1 }, new[] { 2 } })
        {
            using (var output = FixedBufferOnnxValue.CreateFromTensor(new DenseTensor<float>(shape)))
            {
                Refused(
                    ErrorCode.InvalidArgument, "loss", () => session.TrainStep(fixture.Buffers(0), new[] { output }));
            }
        }
        using (var output = FixedBufferOnnxValue.CreateFromTensor(new DenseTensor<double>(new int[0])))
        {
            Refused(ErrorCode.InvalidArgument, "loss", () => session.TrainStep(fixture.Buffers(0), new[] { output }));
        }
        Refused(
            ErrorCode.InvalidArgument, "", () => session.TrainStep(fixture.Buffers(0), new FixedBufferOnnxValue[0]));
    }

    [Test]
    public void CallsInTheWrongOrderAreRefused()
    {
        Refused(ErrorCode.RuntimeException, "", () => session.OptimizerStep());
        Refused(ErrorCode.RuntimeException, "", () => session.SchedulerStep());
        Refused(ErrorCode.RuntimeException, "", () => session.EndProfiling());
    }

    [Test]
    public void ASessionWithoutAModelSaysSo()
    {
        using (CheckpointState other = fixture.LoadState())
        using (var bare = new TrainingSession(other, fixture.TrainModel, null))
        {
            Refused(ErrorCode.NoModel, "eval", () => bare.EvalStep(fixture.Values(0)));
            Refused(ErrorCode.NoModel, "eval", () => bare.EvalStep(fixture.Buffers(0)));
            Assert.That(bare.InputNames(false), Is.Empty);
            Assert.That(bare.OutputNames(false), Is.Empty);
            Refused(ErrorCode.NoModel, "eval", () => bare.ExportModelForInferencing("x", new[] { "output" }));
            Refused(ErrorCode.NoModel, "optimizer", () => bare.OptimizerStep());
            Refused(ErrorCode.NoModel, "optimizer", () => bare.RegisterLinearLRScheduler(1, 2, 0.1f));
        }
    }

    [Test]
    public void NamesThatAreNotThereAreRefused()
    {
        Refused(ErrorCode.InvalidArgument, "nothing", () => state.GetParameter("nothing"));
        Refused(ErrorCode.InvalidArgument, "nothing", () => state.GetProperty("nothing"));
        Refused(ErrorCode.InvalidArgument, "nothing", () => state.UpdateParameter("nothing", fixture.Values(0)[0]));
        Refused(
            ErrorCode.InvalidArgument, "nothing", () => session.ExportModelForInferencing("x", new[] { "nothing" }));
        Refused(ErrorCode.InvalidArgument, "", () => session.ExportModelForInferencing("x", new string[0]));
        Refused(ErrorCode.InvalidArgument, "9", () => session.GetModelInputTypeInfo(true, 9));
        Assert.Throws<ArgumentOutOfRangeException>(() => session.GetModelInputTypeInfo(true, -1));
    }

    [Test]
    public void NumbersThatMakeNoSenseAreRefused()
    {
        Refused(ErrorCode.InvalidArgument, "", () => session.SetLearningRate(float.NaN));
        Refused(ErrorCode.InvalidArgument, "", () => session.SetLearningRate(float.PositiveInfinity));
        Refused(ErrorCode.InvalidArgument, "", () => session.RegisterLinearLRScheduler(-1, 10, 0.1f));
        Refused(ErrorCode.InvalidArgument, "", () => new SessionOptions { IntraOpNumThreads = -1 });
        Refused(ErrorCode.InvalidArgument, "", () => new SessionOptions { LogSeverityLevel = (OrtLoggingLevel)7 });
        var level = (GraphOptimizationLevel)7;
        Refused(ErrorCode.InvalidArgument, "", () => new SessionOptions { GraphOptimizationLevel = level });
    }

    [Test]
    public void PlacesThatCannotBeWrittenAreNamed()
    {
        string path = Path.Combine(Fixture.NewFolder(), "no", "folder");
        Refused(ErrorCode.Fail, path, () => CheckpointState.SaveCheckpoint(state, path));
        Refused(ErrorCode.Fail, path, () => session.ExportModelForInferencing(path, new[] { "output" }));
    }

    [Test]
    public void ABufferOfAnotherSizeIsRefused()
    {
        OrtValue small = OrtValue.CreateTensorValueFromMemory(new float[3], new long[] { 3 });
        Refused(ErrorCode.InvalidArgument, "3", () => session.FromBuffer(small, true));
    }

    [Test]
    public void AStepThatIsToldToEndEnds()
    {
        using (var options = new RunOptions())
        {
            options.Terminate = true;
            const string terminated = "Exiting due to terminate flag being set to true";
            Refused(ErrorCode.Fail, terminated, () => session.TrainStep(options, fixture.Buffers(0)));
            Refused(ErrorCode.Fail, terminated, () => session.EvalStep(options, fixture.Buffers(0)));
            options.Terminate = false;
            session.TrainStep(options, fixture.Buffers(0)).Dispose();
            session.OptimizerStep(options);
        }
        session.Dispose();
        state.Dispose();
        MakeASession();
    }

    [Test]
    public void NoRunOptionsAreTheDefaults()
    {
        RunOptions none = null;
        session.TrainStep(none, fixture.Buffers(0)).Dispose();
        session.OptimizerStep(none);
        session.Dispose();
        state.Dispose();
        MakeASession();
    }

    private static void Refused(ErrorCode code, string said, Action call)
    {
        var error = Assert.Throws<OnnxRuntimeException>(() => call());
        Assert.That(error.ErrorCode, Is.EqualTo(code), error.Message);
        StringAssert.StartsWith("[ErrorCode:" + code + "] ", error.Message);
        StringAssert.Contains(said, error.Message);
    }

    private static void IsNull(string name, Action call)
    {
        Assert.That(Assert.Throws<ArgumentNullException>(() => call()).ParamName, Is.EqualTo(name));
    }
}
