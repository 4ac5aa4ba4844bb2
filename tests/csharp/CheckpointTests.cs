using System.IO;
using System.Linq;
using Microsoft.ML.OnnxRuntime;
using Microsoft.ML.OnnxRuntime.Tensors;
using NUnit.Framework;

/// <summary>States are read, changed and saved.</summary>
[TestFixture]
public class CheckpointTests
{
    [Test]
    public void PropertiesOfAllTypesAreSavedWithTheState()
    {
        string path = Path.Combine(Fixture.NewFolder(), "état");
        using (CheckpointState state = new Fixture("mlp_adamw").LoadState())
        {
            state.AddProperty("epoch", long.MaxValue);
            state.AddProperty("loss", 0.125f);
            state.AddProperty("note", "Übergröße 字 \U0001F600");
            state.AddProperty("empty", "");
            state.AddProperty("loss", 0.5f);
            CheckpointState.SaveCheckpoint(state, path);
        }
        using (CheckpointState state = CheckpointState.LoadCheckpoint(path))
        {
            Assert.That(state.GetProperty("epoch"), Is.EqualTo(long.MaxValue));
            Assert.That(state.GetProperty("loss"), Is.EqualTo(0.5f));
            Assert.That(state.GetProperty("note"), Is.EqualTo("Übergröße 字 \U0001F600"));
            Assert.That(state.GetProperty("empty"), Is.EqualTo(""));
            Assert.That(state.GetPropertyType("loss"), Is.EqualTo(OrtPropertyType.Float));
            Assert.That(state.PropertyNames(), Is.EqualTo(new[] { "empty", "epoch", "loss", "note" }));
        }
    }

    [Test]
    public void ParametersAreReadAndReplaced()
    {
        using (CheckpointState state = new Fixture("mlp_adamw").LoadState())
        {
            string[] names = { "fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias" };
            Assert.That(state.ParameterNames(), Is.EqualTo(names));
            Assert.That(state.IsParameterTrainable("fc1.bias"), Is.True);
            OrtTensorTypeAndShapeInfo info = state.GetParameterTypeAndShape("fc1.weight");
            Assert.That(info.ElementDataType, Is.EqualTo(TensorElementType.Float));
            Assert.That(info.Shape, Is.EqualTo(new long[] { 32, 64 }));

            float[] values = Enumerable.Range(0, 32).Select(i => i / 8f).ToArray();
            using (OrtValue bias = OrtValue.CreateTensorValueFromMemory(values, new long[] { 32 }))
            {
                state.UpdateParameter("fc1.bias", bias);
            }
            using (OrtValue bias = state.GetParameter("fc1.bias"))
            {
                Assert.That(bias.GetTensorDataAsSpan<float>().ToArray(), Is.EqualTo(values));
            }
        }
    }

    [Test]
    public void FrozenParametersAreNamedLast()
    {
        using (CheckpointState state = new Fixture("resnet_frozen").LoadState())
        {
            var trainable = state.ParameterNames().Select(state.IsParameterTrainable).ToList();
            Assert.That(trainable.First(), Is.True);
            Assert.That(trainable.Last(), Is.False);
            Assert.That(trainable, Is.EqualTo(trainable.OrderByDescending(is_ => is_)));
        }
    }

    [Test]
    public void AStateInMemoryIsTheStateInTheFile()
    {
        var fixture = new Fixture("mlp_adamw");
        string path = Path.Combine(Fixture.NewFolder(), "state");
        using (CheckpointState state = CheckpointState.LoadCheckpointFromBuffer(File.ReadAllBytes(fixture.Checkpoint)))
        {
            Assert.That(state.IsNominal(), Is.False);
            CheckpointState.SaveCheckpoint(state, path, true);
        }
        using (CheckpointState saved = CheckpointState.LoadCheckpoint(path))
        using (CheckpointState given = fixture.LoadState())
        using (OrtValue one = saved.GetParameter("fc2.weight"))
        using (OrtValue other = given.GetParameter("fc2.weight"))
        {
            float[] wanted = other.GetTensorDataAsSpan<float>().ToArray();
            Assert.That(one.GetTensorDataAsSpan<float>().ToArray(), Is.EqualTo(wanted));
        }
    }

    [Test]
    public void TrainingGoesOnWhereItWasSaved()
    {
        var fixture = new Fixture("mlp_adamw");
        string path = Path.Combine(Fixture.NewFolder(), "half");
        float[] first, second;
        using (CheckpointState state = fixture.LoadState())
        using (TrainingSession session = fixture.MakeSession(state))
        {
            Run(session, fixture, 0, 4);
            Assert.That(state.GetOptimizerStepCount(), Is.EqualTo(4));
            CheckpointState.SaveCheckpoint(state, path, includeOptimizerState: true);
            first = Run(session, fixture, 4, 8);
        }
        using (CheckpointState state = CheckpointState.LoadCheckpoint(path))
        using (TrainingSession session = fixture.MakeSession(state))
        {
            second = Run(session, fixture, 4, 8);
        }
        Assert.That(second, Is.EqualTo(first));
    }

    private static float[] Run(TrainingSession session, Fixture fixture, int begin, int end)
    {
        var losses = new float[end - begin];
        for (int step = begin; step < end; ++step)
        {
            using (var outputs = session.TrainStep(fixture.Values(step)))
            {
                losses[step - begin] = outputs[0].GetTensorDataAsSpan<float>()[0];
            }
            session.OptimizerStep();
            session.LazyResetGrad();
        }
        return losses;
    }
}
