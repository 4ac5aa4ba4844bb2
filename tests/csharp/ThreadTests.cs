using System;
using System.Linq;
using System.Threading;
using Microsoft.ML.OnnxRuntime;
using NUnit.Framework;

/// <summary>Several threads at once do no harm: a shared session rejects concurrent calls, separate sessions
/// work.</summary>
[TestFixture]
public class ThreadTests
{
    [Test]
    public void ASessionRefusesASecondThread()
    {
        var fixture = new Fixture("encoder");
        int refused = 0;
        int done = 0;
        using (CheckpointState state = fixture.LoadState())
        using (TrainingSession session = fixture.MakeSession(state))
        {
            Together(4, i =>
            {
                DateTime end = DateTime.UtcNow.AddSeconds(20);
                while (Volatile.Read(ref refused) == 0 && DateTime.UtcNow < end)
                {
                    try
                    {
                        session.TrainStep(fixture.Values(0)).Dispose();
                        Interlocked.Increment(ref done);
                    }
                    catch (OnnxRuntimeException error) when (error.ErrorCode == ErrorCode.RuntimeException)
                    {
                        StringAssert.Contains("thread", error.Message);
                        Interlocked.Increment(ref refused);
                    }
                }
            });
        }
        Assert.That(refused, Is.GreaterThan(0));
        Assert.That(done, Is.GreaterThan(0));
    }

    [Test]
    public void SessionsOfTheirOwnGiveTheSameNumbers()
    {
        var fixture = new Fixture("mlp_adamw");
        var losses = new float[4][];
        Together(losses.Length, i =>
        {
            losses[i] = new float[8];
            using (CheckpointState state = fixture.LoadState())
            using (TrainingSession session = fixture.MakeSession(state))
            {
                for (int step = 0; step < losses[i].Length; ++step)
                {
                    using (var outputs = session.TrainStep(fixture.Values(step)))
                    {
                        losses[i][step] = outputs[0].GetTensorDataAsSpan<float>()[0];
                    }
                    session.OptimizerStep();
                    session.LazyResetGrad();
                }
            }
        });
        Assert.That(losses, Is.All.EqualTo(losses[0]));
    }

    [Test]
    public void DisposingWhileAStepRunsEndsWithThatStep()
    {
        var fixture = new Fixture("mlp_adamw");
        for (int round = 0; round < 20; ++round)
        {
            CheckpointState state = fixture.LoadState();
            TrainingSession session = fixture.MakeSession(state);
            var inputs = fixture.Buffers(0);
            using (var started = new ManualResetEvent(false))
            {
                Together(2, i =>
                {
                    if (i == 1)
                    {
                        started.WaitOne();
                        session.Dispose();
                        inputs.ForEach(input => input.Dispose());
                        state.Dispose();
                        return;
                    }
                    try
                    {
                        while (true)
                        {
                            session.TrainStep(inputs).Dispose();
                            started.Set();
                        }
                    }
                    catch (ObjectDisposedException)
                    {
                    }
                });
            }
        }
    }

    private static void Together(int count, Action<int> work)
    {
        var errors = new Exception[count];
        Thread[] threads = Enumerable.Range(0, count).Select(i => new Thread(() =>
        {
            try
            {
                work(i);
            }
            catch (Exception error)
            {
                errors[i] = error;
            }
        })).ToArray();
        foreach (Thread thread in threads)
        {
            thread.Start();
        }
        foreach (Thread thread in threads)
        {
            thread.Join();
        }
        Assert.That(errors, Is.All.Null);
    }
}
