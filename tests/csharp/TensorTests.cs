using System;
using System.Collections.Generic;
using System.Linq;
using Microsoft.ML.OnnxRuntime.Tensors;
using NUnit.Framework;

/// <summary>C# tensors behave like multidimensional arrays.</summary>
[TestFixture]
public class TensorTests
{
    [Test]
    public void ATensorKnowsItsShape()
    {
        var tensor = new DenseTensor<float>(new[] { 2, 3, 4 });
        Assert.That(tensor.Length, Is.EqualTo(24));
        Assert.That(tensor.Rank, Is.EqualTo(3));
        Assert.That(tensor.Dimensions.ToArray(), Is.EqualTo(new[] { 2, 3, 4 }));
        Assert.That(tensor.Strides.ToArray(), Is.EqualTo(new[] { 12, 4, 1 }));
        Assert.That(tensor.IsReversedStride, Is.False);
        Assert.That(tensor.ToString(), Is.EqualTo("Tensor<Single>[2,3,4]"));
        var scalar = new DenseTensor<float>(new int[0]);
        Assert.That(scalar.Length, Is.EqualTo(1));
        Assert.That(scalar.Rank, Is.EqualTo(0));
        Assert.That(new DenseTensor<int>(5).Dimensions.ToArray(), Is.EqualTo(new[] { 5 }));
    }

    [Test]
    public void ElementsAreReachedByIndices()
    {
        var tensor = new DenseTensor<int>(Enumerable.Range(0, 6).ToArray(), new[] { 2, 3 });
        Assert.That(tensor[1, 2], Is.EqualTo(5));
        tensor[1, 0] = 30;
        Assert.That(tensor.GetValue(3), Is.EqualTo(30));
        Assert.That(tensor[new ReadOnlySpan<int>(new[] { 1, 0 })], Is.EqualTo(30));
        Assert.That(tensor[new[] { 0, 1 }], Is.EqualTo(1));
        Assert.That(((IReadOnlyList<int>)tensor)[3], Is.EqualTo(30));
    }

    [Test]
    public void IndicesOutsideAreNamed()
    {
        var tensor = new DenseTensor<int>(new[] { 2, 3 });
        var outside = Assert.Throws<IndexOutOfRangeException>(() => GC.KeepAlive(tensor[1, 3]));
        Assert.That(outside.Message, Is.EqualTo("index 1 is 3, expected one from 0 to 2 for the shape [2,3]"));
        Assert.Throws<IndexOutOfRangeException>(() => tensor[-1, 0] = 1);
        Assert.Throws<IndexOutOfRangeException>(() => tensor.GetValue(6));
        StringAssert.Contains("expected 2", Assert.Throws<ArgumentException>(() => GC.KeepAlive(tensor[1])).Message);
        Assert.Throws<ArgumentNullException>(() => GC.KeepAlive(tensor[(int[])null]));
    }

    [Test]
    public void ShapesThatCannotBeAreRefused()
    {
        Assert.Throws<ArgumentOutOfRangeException>(() => new DenseTensor<int>(-1));
        Assert.Throws<ArgumentOutOfRangeException>(() => new DenseTensor<int>(new[] { 2, -3 }));
        Assert.Throws<ArgumentOutOfRangeException>(() => new DenseTensor<byte>(new[] { 1 << 16, 1 << 16 }));
        Assert.Throws<ArgumentException>(() => new DenseTensor<int>(new int[5], new[] { 2, 3 }));
        Assert.Throws<ArgumentException>(() => new DenseTensor<int>(6).Reshape(new[] { 2, 2 }));
    }

    [Test]
    public void ColumnsMayComeFirst()
    {
        DenseTensor<int> tensor = new[,] { { 1, 2, 3 }, { 4, 5, 6 } }.ToTensor(true);
        Assert.That(tensor.Strides.ToArray(), Is.EqualTo(new[] { 1, 2 }));
        Assert.That(tensor.ToArray(), Is.EqualTo(new[] { 1, 4, 2, 5, 3, 6 }));
        Assert.That(tensor[1, 0], Is.EqualTo(4));
        Assert.That(tensor.Clone().IsReversedStride);
        Assert.That(tensor.GetArrayString(false), Is.EqualTo("{{1,2,3},{4,5,6}}"));
    }

    [Test]
    public void ATensorLiesOverItsMemory()
    {
        var array = new[] { 1, 2, 3, 4 };
        var tensor = new DenseTensor<int>(array, new[] { 2, 2 });
        Tensor<int> flat = tensor.Reshape(new[] { 4 });
        array[1] = 20;
        flat[3] = 40;
        Assert.That(tensor[0, 1], Is.EqualTo(20));
        Assert.That(tensor[1, 1], Is.EqualTo(40));
        Assert.That(tensor.Buffer.Span[3], Is.EqualTo(40));
        Tensor<int> copy = tensor.Clone();
        copy[0, 0] = 99;
        Assert.That(array[0], Is.EqualTo(1));
        Assert.That(tensor.ToDenseTensor().Buffer.Span[0], Is.EqualTo(1));
    }

    [Test]
    public void ArraysOfAnyRankBecomeTensors()
    {
        Assert.That(new[] { 1, 2 }.ToTensor().Dimensions.ToArray(), Is.EqualTo(new[] { 2 }));
        Assert.That(new[,] { { 1, 2 }, { 3, 4 } }.ToTensor()[1, 0], Is.EqualTo(3));
        Assert.That(new[,,] { { { 1, 2 } }, { { 3, 4 } } }.ToTensor()[1, 0, 1], Is.EqualTo(4));
        Assert.That(new[,,,] { { { { 1 }, { 2 } } } }.ToTensor()[0, 0, 1, 0], Is.EqualTo(2));
        Array any = new double[2, 3, 1, 1, 2];
        Assert.That(any.ToTensor<double>().Dimensions.ToArray(), Is.EqualTo(new[] { 2, 3, 1, 1, 2 }));
        Assert.Throws<ArgumentException>(() => any.ToTensor<float>());
        var array = new[] { 1, 2 };
        DenseTensor<int> tensor = array.ToTensor();
        array[0] = 9;
        Assert.That(tensor[0], Is.EqualTo(1), "the elements are copied");
    }

    [Test]
    public void ATensorIsACollection()
    {
        var tensor = new DenseTensor<float>(new[] { 1f, 2, 3, 2 }, new[] { 2, 2 });
        Assert.That(tensor, Is.EqualTo(new[] { 1f, 2, 3, 2 }));
        Assert.That(tensor.Sum(), Is.EqualTo(8));
        Assert.That(((ICollection<float>)tensor).Count, Is.EqualTo(4));
        Assert.That(tensor.IndexOf(2), Is.EqualTo(1));
        Assert.That(tensor.Contains(7), Is.False);
        var array = new float[6];
        tensor.CopyTo(array, 1);
        Assert.That(array, Is.EqualTo(new[] { 0f, 1, 2, 3, 2, 0 }));
        Assert.Throws<ArgumentException>(() => tensor.CopyTo(new float[3], 0));
        Assert.Throws<InvalidOperationException>(() => ((ICollection<float>)tensor).Add(1));
        tensor.Fill(5);
        Assert.That(tensor.ToArray(), Is.All.EqualTo(5));
    }

    [Test]
    public void EmptyClonesHaveShapeAndType()
    {
        var tensor = new DenseTensor<float>(new[] { 1f, 2, 3, 4 }, new[] { 2, 2 });
        Assert.That(tensor.CloneEmpty().ToArray(), Is.EqualTo(new float[4]));
        Assert.That(tensor.CloneEmpty(new[] { 3 }).Length, Is.EqualTo(3));
        Assert.That(tensor.CloneEmpty<long>().ToString(), Is.EqualTo("Tensor<Int64>[2,2]"));
        Assert.That(tensor.CloneEmpty<long>(new[] { 1, 5 }).ToString(), Is.EqualTo("Tensor<Int64>[1,5]"));
    }

    [Test]
    public void ATensorIsShownRowByRow()
    {
        var tensor = new DenseTensor<float>(new[] { 1f, 2.5f, 3, 4 }, new[] { 2, 2 });
        Assert.That(tensor.GetArrayString(), Is.EqualTo("{\n    {1,2.5},\n    {3,4}\n}"));
        Assert.That(new DenseTensor<int>(new int[0]).GetArrayString(), Is.EqualTo("0"));
    }
}
