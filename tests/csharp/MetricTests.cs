using System;
using Microsoft.ML.OnnxRuntime;
using NUnit.Framework;

/// <summary>Metrics count batches one by one.</summary>
[TestFixture]
public class MetricTests
{
    private static readonly float[] Scores = { 3f, 1f, 2f, 0f, 5f, 4f, 1f, 2f, 9f, 6f, 1f, 1f, 0f, 1f, 0f };
    private static readonly long[] Classes = { 0, 1, 2, 1, 1 };

    private static void Count(Metric metric, int from, int to)
    {
        float[] scores = new float[3 * (to - from)];
        long[] classes = new long[to - from];
        Array.Copy(Scores, 3 * from, scores, 0, scores.Length);
        Array.Copy(Classes, from, classes, 0, classes.Length);
        using (OrtValue prediction = OrtValue.CreateTensorValueFromMemory(scores, new long[] { to - from, 3 }))
        using (OrtValue target = OrtValue.CreateTensorValueFromMemory(classes, new long[] { to - from }))
        {
            metric.Update(prediction, target, null);
        }
    }

    private static double[] Result(Metric metric)
    {
        using (OrtValue value = metric.Result())
        {
            return value.GetTensorDataAsSpan<double>().ToArray();
        }
    }

    [Test]
    public void BatchesOfAnySizeGiveTheSameValueAndAStateContinues()
    {
        using (Metric whole = Metric.Create("accuracy", ""))
        using (Metric first = Metric.Create("accuracy", ""))
        using (Metric second = Metric.Create("accuracy", ""))
        {
            Count(whole, 0, 5);
            Assert.That(Result(whole), Is.EqualTo(new[] { 0.8 }));
            Count(first, 0, 1);
            second.SetState(first.GetState());
            Count(second, 1, 5);
            Assert.That(Result(second), Is.EqualTo(new[] { 0.8 }));
            second.Reset();
            Assert.That(Result(second)[0], Is.NaN);
            Count(second, 1, 5);
            second.Merge(first);
            Assert.That(Result(second), Is.EqualTo(new[] { 0.8 }));
        }
    }

    [Test]
    public void AConfusionMatrixHasARowForEachClass()
    {
        using (Metric matrix = Metric.Create("confusion_matrix", "ignore_index=0"))
        {
            Count(matrix, 0, 5);
            using (OrtValue value = matrix.Result())
            {
                Assert.That(value.GetTensorTypeAndShape().Shape, Is.EqualTo(new long[] { 3, 3 }));
            }
            Assert.That(Result(matrix), Is.EqualTo(new double[] { 0, 0, 0, 1, 2, 0, 0, 0, 1 }));
        }
    }

    [Test]
    public void WhatDoesNotFitIsRefused()
    {
        var error = Assert.Throws<OnnxRuntimeException>(() => Metric.Create("acuracy", ""));
        Assert.That(error.Message, Is.StringContaining("did you mean \"accuracy\""));
        Assert.Throws<ArgumentNullException>(() => Metric.Create(null, ""));
        using (Metric metric = Metric.Create("top2", ""))
        {
            Assert.Throws<ArgumentNullException>(() => metric.Update(null, null, null));
            error = Assert.Throws<OnnxRuntimeException>(() => metric.SetState(new byte[] { 1, 2 }));
            Assert.That(error.Message, Is.StringContaining("expected the state of a metric, found 2 other bytes"));
        }
    }
}
