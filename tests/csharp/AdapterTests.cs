using System;
using System.Collections.Generic;
using System.IO;
using Microsoft.ML.OnnxRuntime;
using NUnit.Framework;

/// <summary>Runs take the tensors of adapters, and models may be in ORT format.</summary>
[TestFixture]
public class AdapterTests
{
    private static string PathOf(string name)
    {
        string data = Path.GetDirectoryName(Environment.GetEnvironmentVariable("ORTRAIN_REFERENCE_MEMBERS"));
        return Path.Combine(data, "formats", name);
    }

    private static float[] Run(InferenceSession session, RunOptions options)
    {
        using (OrtValue x = OrtValue.CreateTensorValueFromMemory(new[] { 1f, 2f, 3f }, new long[] { 3 }))
        using (OrtValue c = OrtValue.CreateTensorValueFromMemory(new[] { true }, new long[0]))
        using (var outputs = session.Run(options, new[] { "x", "c" }, new[] { x, c }, new[] { "y" }))
        {
            return outputs[0].GetTensorDataAsSpan<float>().ToArray();
        }
    }

    [Test]
    public void ARunTakesTheTensorsOfAnAdapter()
    {
        byte[] bytes = File.ReadAllBytes(PathOf("branches.onnx_adapter"));
        using (var session = new InferenceSession(PathOf("branches.ort")))
        using (OrtLoraAdapter fromFile = OrtLoraAdapter.Create(PathOf("branches.onnx_adapter"), null))
        using (OrtLoraAdapter fromMemory = OrtLoraAdapter.Create(bytes, OrtAllocator.DefaultInstance))
        using (var none = new RunOptions())
        using (var first = new RunOptions())
        using (var second = new RunOptions())
        {
            first.AddActiveLoraAdapter(fromFile);
            second.AddActiveLoraAdapter(fromMemory);
            Assert.That(Run(session, first), Is.Not.EqualTo(Run(session, none)));
            Assert.That(Run(session, first), Is.EqualTo(Run(session, second)));
        }
    }

    [Test]
    public void WhatIsNoAdapterIsRefused()
    {
        var error = Assert.Throws<OnnxRuntimeException>(() => OrtLoraAdapter.Create(new byte[] { 1, 2, 3 }, null));
        Assert.That(error.Message, Is.StringContaining("expected an adapter"));
        Assert.Throws<OnnxRuntimeException>(() => OrtLoraAdapter.Create("ghost", null));
        using (var options = new RunOptions())
        {
            Assert.Throws<ArgumentNullException>(() => options.AddActiveLoraAdapter(null));
        }
        OrtLoraAdapter disposed = OrtLoraAdapter.Create(PathOf("branches.onnx_adapter"), null);
        disposed.Dispose();
        using (var options = new RunOptions())
        {
            Assert.Throws<ObjectDisposedException>(() => options.AddActiveLoraAdapter(disposed));
        }
    }
}
