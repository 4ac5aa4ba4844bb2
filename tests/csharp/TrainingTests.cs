using System;
using System.Collections.Generic;
using System.IO;
using System.Linq;
using Microsoft.ML.OnnxRuntime;
using Microsoft.ML.OnnxRuntime.Tensors;
using NUnit.Framework;

/// <summary>Training reproduces the recorded values, however batches and losses are passed.</summary>
[TestFixture]
public class TrainingTests
{
    private const double Relative = 1e-4;

    /// <summary>How a train step is called.</summary>
    public enum Way
    {
        Values,
        Buffers,
        BuffersIntoBuffers,
        OptionsAndBuffers,
        OptionsAndBuffersIntoBuffers,
    }

    public static IEnumerable<string> Names => Fixture.Names;

    public static IEnumerable<Way> Ways => Enum.GetValues(typeof(Way)).Cast<Way>();

    [TestCaseSource("Names")]
    public void ARunHasTheRecordedNumbers(string name)
    {
        var fixture = new Fixture(name);
        float[] losses = fixture.Numbers("train_losses");
        float[] schedule = fixture.Numbers("schedule");
        using (CheckpointState state = fixture.LoadState())
        using (TrainingSession session = fixture.MakeSession(state))
        {
            if (schedule.Length > 0)
            {
                session.RegisterLinearLRScheduler((long)schedule[0], (long)schedule[1], schedule[2]);
            }
            for (int step = 0; step < losses.Length; ++step)
            {
                Near(session.GetLearningRate(), fixture.Numbers("learning_rates")[step]);
                Near(Step(session, fixture, step, Way.Values), losses[step]);
                session.OptimizerStep();
                if (schedule.Length > 0)
                {
                    session.SchedulerStep();
                }
                session.LazyResetGrad();
            }
            float[] evals = fixture.Numbers("eval_losses");
            for (int step = 0; step < evals.Length; ++step)
            {
                using (var outputs = session.EvalStep(fixture.Values(step)))
                {
                    Near(outputs[0].GetTensorDataAsSpan<float>()[0], evals[step]);
                }
            }
        }
    }

    [TestCaseSource("Ways")]
    public void EveryOverloadOfATrainStepGivesTheSameLosses(Way way)
    {
        var fixture = new Fixture("mlp_adamw");
        float[] losses = fixture.Numbers("train_losses");
        using (CheckpointState state = fixture.LoadState())
        using (TrainingSession session = fixture.MakeSession(state))
        {
            for (int step = 0; step < losses.Length; ++step)
            {
                Near(Step(session, fixture, step, way), losses[step]);
                using (var options = new RunOptions())
                {
                    session.OptimizerStep(options);
                }
                session.LazyResetGrad();
            }
        }
    }

    [Test]
    public void EveryOverloadOfAnEvalStepGivesTheSameOutputs()
    {
        var fixture = new Fixture("mlp_adamw");
        using (CheckpointState state = fixture.LoadState())
        using (TrainingSession session = fixture.MakeSession(state))
        using (var options = new RunOptions())
        {
            float[][] wanted;
            int[][] shapes;
            using (var outputs = session.EvalStep(fixture.Values(0)))
            {
                wanted = outputs.Select(output => output.GetTensorDataAsSpan<float>().ToArray()).ToArray();
                shapes = outputs.Select(o => o.GetTensorTypeAndShape().Shape.Select(e => (int)e).ToArray()).ToArray();
            }
            using (var named = session.EvalStep(fixture.Buffers(0)))
            {
                Assert.That(named.Select(output => output.Name), Is.EqualTo(session.OutputNames(false)));
                Assert.That(named.Select(output => output.AsTensor<float>().ToArray()), Is.EqualTo(wanted));
            }
            using (var named = session.EvalStep(options, fixture.Buffers(0)))
            {
                Assert.That(named.Select(output => output.AsEnumerable<float>().ToArray()), Is.EqualTo(wanted));
            }
            foreach (bool withOptions in new[] { false, true })
            {
                DenseTensor<float>[] tensors = shapes.Select(shape => new DenseTensor<float>(shape)).ToArray();
                FixedBufferOnnxValue[] outputs = tensors.Select(FixedBufferOnnxValue.CreateFromTensor).ToArray();
                if (withOptions)
                {
                    session.EvalStep(options, fixture.Buffers(0), outputs);
                }
                else
                {
                    session.EvalStep(fixture.Buffers(0), outputs);
                }
                Assert.That(tensors.Select(tensor => tensor.ToArray()), Is.EqualTo(wanted));
            }
        }
    }

    [Test]
    public void NamesAreThoseOfTheModels()
    {
        var fixture = new Fixture("mlp_adamw");
        using (CheckpointState state = fixture.LoadState())
        using (TrainingSession session = fixture.MakeSession(state))
        {
            Assert.That(session.InputNames(true), Is.EqualTo(new[] { "input", "labels" }));
            Assert.That(session.InputNames(false), Is.EqualTo(new[] { "input", "labels" }));
            StringAssert.Contains("loss", session.OutputNames(true)[0]);
            StringAssert.Contains("loss", session.OutputNames(false)[0]);
            OrtTensorTypeAndShapeInfo input = session.GetModelInputTypeInfo(true, 0);
            Assert.That(input.ElementDataType, Is.EqualTo(TensorElementType.Float));
            Assert.That(input.Shape, Is.EqualTo(new long[] { -1, 64 }));
            Assert.Throws<InvalidOperationException>(() => GC.KeepAlive(input.ElementCount));
        }
    }

    [Test]
    public void ParametersGoOutAndComeBack()
    {
        var fixture = new Fixture("mlp_adamw");
        using (CheckpointState state = fixture.LoadState())
        using (TrainingSession session = fixture.MakeSession(state))
        using (OrtValue before = session.ToBuffer(true))
        {
            float[] wanted = before.GetTensorDataAsSpan<float>().ToArray();
            Assert.That(wanted.Length, Is.EqualTo(64 * 32 + 32 + 32 * 10 + 10));
            Step(session, fixture, 0, Way.Values);
            session.OptimizerStep();
            using (OrtValue moved = session.ToBuffer(true))
            {
                Assert.That(moved.GetTensorDataAsSpan<float>().ToArray(), Is.Not.EqualTo(wanted));
            }
            session.FromBuffer(before, true);
            using (OrtValue back = session.ToBuffer(true))
            {
                Assert.That(back.GetTensorDataAsSpan<float>().ToArray(), Is.EqualTo(wanted));
            }
        }
    }

    [Test]
    public void ASessionIsMadeOfModelsInMemory()
    {
        var fixture = new Fixture("mlp_adamw");
        using (CheckpointState state = CheckpointState.LoadCheckpointFromBuffer(File.ReadAllBytes(fixture.Checkpoint)))
        using (var options = new SessionOptions())
        using (var session = new TrainingSession(
            options, state, File.ReadAllBytes(fixture.TrainModel), null, File.ReadAllBytes(fixture.OptimizerModel)))
        {
            Near(Step(session, fixture, 0, Way.Values), fixture.Numbers("train_losses")[0]);
            session.OptimizerStep();
        }
    }

    [Test]
    public void OptionsMayBeNull()
    {
        var fixture = new Fixture("mlp_adamw");
        using (CheckpointState state = fixture.LoadState())
        using (var session = new TrainingSession(null, state, fixture.TrainModel, null, null))
        {
            Near(Step(session, fixture, 0, Way.Values), fixture.Numbers("train_losses")[0]);
        }
    }

    [Test]
    public void ASessionWithoutAnEvalModelTrains()
    {
        var fixture = new Fixture("mlp_adamw");
        using (CheckpointState state = fixture.LoadState())
        using (var session = new TrainingSession(state, fixture.TrainModel, fixture.OptimizerModel))
        {
            Near(Step(session, fixture, 0, Way.Buffers), fixture.Numbers("train_losses")[0]);
        }
    }

    [Test]
    public void AnOptimizerIsAttachedLater()
    {
        var fixture = new Fixture("mlp_adamw");
        using (CheckpointState state = fixture.LoadState())
        using (var session = new TrainingSession(state, fixture.TrainModel, null))
        {
            Step(session, fixture, 0, Way.Values);
            session.AttachOptimizer(fixture.OptimizerModel);
            session.OptimizerStep();
            session.LazyResetGrad();
            Near(Step(session, fixture, 1, Way.Values), fixture.Numbers("train_losses")[1]);
        }
    }

    [Test]
    public void GradientsAddUpUntilTheyAreReset()
    {
        var fixture = new Fixture("mlp_adamw");
        using (CheckpointState state = fixture.LoadState())
        using (TrainingSession session = fixture.MakeSession(state))
        {
            Step(session, fixture, 0, Way.Values);
            float[] once = Gradient(state);
            Step(session, fixture, 0, Way.Values);
            Assert.That(Gradient(state), Is.EqualTo(once.Select(element => 2 * element)).Within(1e-6));
            session.LazyResetGrad();
            Step(session, fixture, 0, Way.Values);
            Assert.That(Gradient(state), Is.EqualTo(once));
        }
    }

    [Test]
    public void AModelIsExported()
    {
        var fixture = new Fixture("mlp_adamw");
        string path = Path.Combine(Fixture.NewFolder(), "modèle.onnx");
        using (CheckpointState state = fixture.LoadState())
        using (TrainingSession session = fixture.MakeSession(state))
        {
            session.ExportModelForInferencing(path, new[] { "output" });
        }
        Assert.That(new FileInfo(path).Length, Is.GreaterThan(4 * (64 * 32 + 32 + 32 * 10 + 10)));
    }

    [Test]
    public void PathsMayBeInAnyLanguage()
    {
        var fixture = new Fixture("mlp_adamw");
        string folder = Path.Combine(Fixture.NewFolder(), "modèle-日本-\U0001D11E");
        Directory.CreateDirectory(folder);
        Func<string, string> pathOf = file => Path.Combine(folder, file);
        string[] names = { "checkpoint", "training_model.onnx", "eval_model.onnx", "optimizer_model.onnx" };
        foreach (string name in names)
        {
            File.Copy(fixture.PathOf(name), pathOf("ü-" + name));
        }
        using (CheckpointState state = CheckpointState.LoadCheckpoint(pathOf("ü-checkpoint")))
        using (var session = new TrainingSession(
            state, pathOf("ü-training_model.onnx"), pathOf("ü-eval_model.onnx"), pathOf("ü-optimizer_model.onnx")))
        {
            float loss = Step(session, fixture, 0, Way.Values);
            Assert.That(loss, Is.EqualTo(fixture.Numbers("train_losses")[0]).Within(1e-4f));
            CheckpointState.SaveCheckpoint(state, pathOf("état"), true);
            session.ExportModelForInferencing(pathOf("exporté.onnx"), new[] { "output" });
        }
        CheckpointState.LoadCheckpoint(pathOf("état")).Dispose();
        new InferenceSession(pathOf("exporté.onnx")).Dispose();
        Assert.That(
            Directory.GetFiles(folder).Select(Path.GetFileName).OrderBy(name => name, StringComparer.Ordinal),
            Is.EqualTo(names.Select(name => "ü-" + name).Concat(new[] { "exporté.onnx", "état" })
                .OrderBy(name => name, StringComparer.Ordinal)));
        var error = Assert.Throws<OnnxRuntimeException>(() => CheckpointState.LoadCheckpoint(pathOf("fehlt-ß")));
        StringAssert.Contains(pathOf("fehlt-ß"), error.Message);
    }

    [Test]
    public void TheSameSeedGivesTheSameRun()
    {
        Assert.That(Seeded(7), Is.EqualTo(Seeded(7)));
    }

    private static float[] Seeded(long seed)
    {
        var fixture = new Fixture("encoder");
        TrainingUtils.SetSeed(seed);
        using (CheckpointState state = fixture.LoadState())
        using (TrainingSession session = fixture.MakeSession(state))
        {
            return Enumerable.Range(0, 3).Select(step => Step(session, fixture, step, Way.Values)).ToArray();
        }
    }

    private static float[] Gradient(CheckpointState state)
    {
        using (OrtValue gradient = state.GetParameterGradient("fc1.weight"))
        {
            return gradient.GetTensorDataAsSpan<float>().ToArray();
        }
    }

    private static float Step(TrainingSession session, Fixture fixture, int step, Way way)
    {
        var loss = new DenseTensor<float>(new int[0]);
        using (FixedBufferOnnxValue into = FixedBufferOnnxValue.CreateFromTensor(loss))
        using (var options = new RunOptions())
        {
            switch (way)
            {
                case Way.Values:
                    using (var outputs = session.TrainStep(fixture.Values(step)))
                    {
                        return outputs[0].GetTensorDataAsSpan<float>()[0];
                    }
                case Way.Buffers:
                    using (var outputs = session.TrainStep(fixture.Buffers(step)))
                    {
                        return outputs.First().AsTensor<float>().GetValue(0);
                    }
                case Way.OptionsAndBuffers:
                    using (var outputs = session.TrainStep(options, fixture.Buffers(step)))
                    {
                        return outputs.First().AsEnumerable<float>().First();
                    }
                case Way.BuffersIntoBuffers:
                    session.TrainStep(fixture.Buffers(step), new[] { into });
                    return loss.GetValue(0);
                default:
                    session.TrainStep(options, fixture.Buffers(step), new List<FixedBufferOnnxValue> { into });
                    return loss.GetValue(0);
            }
        }
    }

    private static void Near(float found, float wanted)
    {
        Assert.That(found, Is.EqualTo(wanted).Within(Relative * Math.Abs(wanted)));
    }
}
