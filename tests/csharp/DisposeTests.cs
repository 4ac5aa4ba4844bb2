using System;
using System.Collections.Generic;
using System.Linq;
using Microsoft.ML.OnnxRuntime;
using Microsoft.ML.OnnxRuntime.Tensors;
using NUnit.Framework;

/// <summary>Disposing twice, in any order, and using an object afterwards are safe; the latter throws a clear
/// exception.</summary>
[TestFixture]
public class DisposeTests
{
    [Test]
    public void EverythingIsDisposedOfTwice()
    {
        var fixture = new Fixture("mlp_adamw");
        CheckpointState state = fixture.LoadState();
        TrainingSession session = fixture.MakeSession(state);
        List<OrtValue> inputs = fixture.Values(0);
        List<FixedBufferOnnxValue> buffers = fixture.Buffers(0);
        var outputs = session.TrainStep(inputs);
        var named = session.TrainStep(buffers);
        var options = new RunOptions();
        var sessionOptions = new SessionOptions();
        var everything = new IDisposable[]
        {
            state, session, inputs[0], buffers[0], outputs, outputs[0], named, named[0], options, sessionOptions,
        };
        foreach (IDisposable one in everything.Concat(everything))
        {
            one.Dispose();
        }
    }

    [Test]
    public void ASessionKeepsTheStateThatItTrains()
    {
        var fixture = new Fixture("mlp_adamw");
        CheckpointState state = fixture.LoadState();
        TrainingSession session = fixture.MakeSession(state);
        state.Dispose();
        var outputs = session.TrainStep(fixture.Values(0));
        session.OptimizerStep();
        session.Dispose();
        float loss = outputs[0].GetTensorDataAsSpan<float>()[0];
        Assert.That(loss, Is.EqualTo(fixture.Numbers("train_losses")[0]).Within(1e-3));
        outputs.Dispose();
    }

    [Test]
    public void OptionsMayGoBeforeTheSession()
    {
        var fixture = new Fixture("mlp_adamw");
        var options = new SessionOptions();
        using (CheckpointState state = fixture.LoadState())
        using (var session = new TrainingSession(options, state, fixture.TrainModel, null, null))
        {
            options.Dispose();
            session.TrainStep(fixture.Values(0)).Dispose();
        }
    }

    [Test]
    public void TheEnvironmentMayGoBeforeTheSession()
    {
        var fixture = new Fixture("mlp_adamw");
        using (CheckpointState state = fixture.LoadState())
        using (TrainingSession session = fixture.MakeSession(state))
        {
            OrtEnv former = OrtEnv.Instance();
            former.Dispose();
            Assert.That(OrtEnv.IsCreated, Is.False);
            session.TrainStep(fixture.Values(0)).Dispose();
            using (CheckpointState other = fixture.LoadState())
                fixture.MakeSession(other).Dispose();
            Assert.That(OrtEnv.IsCreated, Is.True);
            Assert.That(OrtEnv.Instance(), Is.Not.SameAs(former));
        }
    }

    [Test]
    public void ADisposedSessionSaysSo()
    {
        var fixture = new Fixture("mlp_adamw");
        CheckpointState state = fixture.LoadState();
        TrainingSession session = fixture.MakeSession(state);
        OrtValue buffer = session.ToBuffer(true);
        session.Dispose();
        var calls = new Action[]
        {
            () => session.TrainStep(fixture.Values(0)),
            () => session.TrainStep(fixture.Buffers(0)),
            () => session.TrainStep(fixture.Buffers(0), fixture.Buffers(0)),
            () => session.EvalStep(fixture.Values(0)),
            () => session.OptimizerStep(),
            () => session.SchedulerStep(),
            () => session.LazyResetGrad(),
            () => session.GetLearningRate(),
            () => session.SetLearningRate(1),
            () => session.RegisterLinearLRScheduler(1, 2, 3),
            () => session.InputNames(true),
            () => session.OutputNames(false),
            () => session.ToBuffer(true),
            () => session.FromBuffer(buffer, true),
            () => session.ExportModelForInferencing("x", new[] { "output" }),
            () => session.GetModelInputTypeInfo(true, 0),
        };
        foreach (Action call in calls)
        {
            SaysDisposed("TrainingSession", call);
        }
    }

    [Test]
    public void ADisposedStateSaysSo()
    {
        var fixture = new Fixture("mlp_adamw");
        CheckpointState state = fixture.LoadState();
        state.Dispose();
        SaysDisposed("CheckpointState", () => fixture.MakeSession(state));
        SaysDisposed("CheckpointState", () => CheckpointState.SaveCheckpoint(state, "x"));
        SaysDisposed("CheckpointState", () => state.AddProperty("x", 1L));
        SaysDisposed("CheckpointState", () => state.AddProperty("x", "y"));
        SaysDisposed("CheckpointState", () => state.GetProperty("x"));
        SaysDisposed("CheckpointState", () => state.GetParameter("x"));
        SaysDisposed("CheckpointState", () => state.ParameterNames());
    }

    [Test]
    public void DisposedValuesSaySo()
    {
        var fixture = new Fixture("mlp_adamw");
        using (CheckpointState state = fixture.LoadState())
        using (TrainingSession session = fixture.MakeSession(state))
        {
            List<OrtValue> inputs = fixture.Values(0);
            inputs[1].Dispose();
            SaysDisposed("OrtValue", () => session.TrainStep(inputs));
            SaysDisposed("OrtValue", () => GC.KeepAlive(inputs[1].GetTensorDataAsSpan<long>().Length));
            SaysDisposed("OrtValue", () => GC.KeepAlive(inputs[1].GetTensorMutableDataAsSpan<long>().Length));
            SaysDisposed("OrtValue", () => GC.KeepAlive(inputs[1].GetTensorMutableRawData().Length));
            SaysDisposed("OrtValue", () => inputs[1].GetTensorTypeAndShape());
            SaysDisposed("OrtValue", () => GC.KeepAlive(inputs[1].OnnxType));
            SaysDisposed("OrtValue", () => state.UpdateParameter("fc1.bias", inputs[1]));

            List<FixedBufferOnnxValue> buffers = fixture.Buffers(0);
            buffers[0].Dispose();
            SaysDisposed("FixedBufferOnnxValue", () => session.TrainStep(buffers));

            var outputs = session.TrainStep(fixture.Values(0));
            outputs.Dispose();
            SaysDisposed("OrtValue", () => GC.KeepAlive(outputs[0].GetTensorDataAsSpan<float>().Length));

            var named = session.TrainStep(fixture.Buffers(0));
            Tensor<float> loss = named[0].AsTensor<float>();
            Assert.That(loss.GetValue(0), Is.GreaterThan(0));
            named.Dispose();
            SaysDisposed("OrtValue", () => loss.GetValue(0));
            SaysDisposed("OrtValue", () => loss.ToArray());
            SaysDisposed("OrtValue", () => FixedBufferOnnxValue.CreateFromTensor(loss));
        }
    }

    [Test]
    public void DisposedOptionsSaySo()
    {
        var fixture = new Fixture("mlp_adamw");
        var options = new SessionOptions();
        var runOptions = new RunOptions();
        options.Dispose();
        runOptions.Dispose();
        SaysDisposed("SessionOptions", () => options.IntraOpNumThreads = 1);
        SaysDisposed("SessionOptions", () => GC.KeepAlive(options.LogId));
        SaysDisposed("RunOptions", () => runOptions.Terminate = true);
        using (CheckpointState state = fixture.LoadState())
        using (TrainingSession session = fixture.MakeSession(state))
        {
            SaysDisposed("SessionOptions", () => new TrainingSession(options, state, fixture.TrainModel, null, null));
            SaysDisposed("RunOptions", () => session.TrainStep(runOptions, fixture.Buffers(0)));
            SaysDisposed("RunOptions", () => session.OptimizerStep(runOptions));
        }
    }

    [Test]
    public void WhatAllShareIsNotDisposedOf()
    {
        OrtMemoryInfo.DefaultInstance.Dispose();
        OrtAllocator.DefaultInstance.Dispose();
        Assert.That(OrtMemoryInfo.DefaultInstance.Name, Is.EqualTo("Cpu"));
        using (OrtValue value = OrtValue.CreateAllocatedTensorValue(
            OrtAllocator.DefaultInstance, TensorElementType.Int64, new long[] { 2, 3 }))
        {
            Assert.That(value.GetTensorMutableDataAsSpan<long>().Length, Is.EqualTo(6));
        }
    }

    private static void SaysDisposed(string name, Action call)
    {
        Assert.That(Assert.Throws<ObjectDisposedException>(() => call()).ObjectName, Is.EqualTo(name));
    }
}
