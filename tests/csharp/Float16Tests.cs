using System;
using Microsoft.ML.OnnxRuntime;
using NUnit.Framework;

/// <summary>16-bit floats follow the definitions of their formats.</summary>
[TestFixture]
public class Float16Tests
{
    [Test]
    public void EveryHalfIsItsOwnFloat()
    {
        for (int bits = 0; bits <= ushort.MaxValue; ++bits)
        {
            var half = new Float16((ushort)bits);
            Assert.That(half.ToFloat(), Is.EqualTo(Half(bits)), "bits " + bits.ToString("x4"));
            if (!Float16.IsNaN(half) && ((Float16)half.ToFloat()).value != bits)
            {
                Assert.Fail("bits " + bits.ToString("x4"));
            }
        }
    }

    [Test]
    public void EveryBFloatIsItsOwnFloat()
    {
        for (int bits = 0; bits <= ushort.MaxValue; ++bits)
        {
            var number = new BFloat16((ushort)bits);
            float wanted = BitConverter.ToSingle(BitConverter.GetBytes((uint)bits << 16), 0);
            Assert.That(number.ToFloat(), Is.EqualTo(wanted));
            if (!BFloat16.IsNaN(number) && ((BFloat16)wanted).value != bits)
            {
                Assert.Fail("bits " + bits.ToString("x4"));
            }
        }
    }

    [Test]
    public void FloatsBetweenTwoHalvesGoToTheNearest()
    {
        for (int bits = 0; bits < 0x7BFF; ++bits)
        {
            double low = Half(bits);
            double high = Half(bits + 1);
            var middle = (float)((low + high) / 2);
            int even = bits % 2 == 0 ? bits : bits + 1;
            Assert.That(((Float16)middle).value, Is.EqualTo(even));
            Assert.That(((Float16)(float)(low + (high - low) * 0.375)).value, Is.EqualTo(bits));
            Assert.That(((Float16)(-(float)(low + (high - low) * 0.625))).value, Is.EqualTo(0x8000 | (bits + 1)));
        }
    }

    [Test]
    public void LimitsAndSpecialNumbers()
    {
        Assert.That((float)Float16.MaxValue, Is.EqualTo(65504f));
        Assert.That((float)Float16.MinValue, Is.EqualTo(-65504f));
        Assert.That((float)Float16.Epsilon, Is.EqualTo(5.9604645e-8f));
        Assert.That((float)Float16.One, Is.EqualTo(1f));
        Assert.That((Float16)65519f == Float16.MaxValue);
        Assert.That((Float16)65520f == Float16.PositiveInfinity);
        Assert.That((Float16)1e9f == Float16.PositiveInfinity);
        Assert.That((Float16)float.NegativeInfinity == Float16.NegativeInfinity);
        Assert.That(Float16.IsNaN((Float16)float.NaN));
        Assert.That((Float16)1e-9f == Float16.Zero);

        Assert.That((float)BFloat16.One, Is.EqualTo(1f));
        Assert.That((float)BFloat16.MaxValue, Is.EqualTo(3.3895314e38f));
        Assert.That((BFloat16)float.MaxValue == BFloat16.PositiveInfinity);
        Assert.That(BFloat16.IsNaN((BFloat16)float.NaN));
        Assert.That(((BFloat16)1.00390625f).value, Is.EqualTo(0x3F80), "a half goes to the even one");
        Assert.That(((BFloat16)1.01171875f).value, Is.EqualTo(0x3F82), "a half goes to the even one");
    }

    [Test]
    public void NumbersAreCompared()
    {
        var one = (Float16)1f;
        var two = (Float16)2f;
        Assert.That(one < two && two > one && one != two && one == (Float16)1f);
        Assert.That(one.CompareTo(two), Is.LessThan(0));
        Assert.That(one.CompareTo((object)null), Is.GreaterThan(0));
        Assert.Throws<ArgumentException>(() => one.CompareTo("one"));
        Assert.That(Float16.NaN == Float16.NaN, Is.False);
        Assert.That(Float16.NaN.Equals(Float16.NaN));
        Assert.That(new Float16(0x8000) == Float16.Zero);
        Assert.That(new Float16(0x8000).GetHashCode(), Is.EqualTo(Float16.Zero.GetHashCode()));
        Assert.That(((Float16)0.5f).ToString(), Is.EqualTo("0.5"));
        Assert.That((BFloat16)1f < (BFloat16)2f && ((BFloat16)1f).Equals((object)(BFloat16)1f));
    }

    /// <summary>The value of a bit pattern, by the definition of the format.</summary>
    private static float Half(int bits)
    {
        int exponent = bits >> 10 & 0x1F;
        int fraction = bits & 0x3FF;
        double magnitude = exponent == 0
            ? fraction * Math.Pow(2, -24)
            : exponent == 0x1F
                ? (fraction == 0 ? double.PositiveInfinity : double.NaN)
                : (1024 + fraction) * Math.Pow(2, exponent - 25);
        return (float)((bits & 0x8000) == 0 ? magnitude : -magnitude);
    }
}
