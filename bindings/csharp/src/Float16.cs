using System;
using System.Globalization;

namespace Microsoft.ML.OnnxRuntime
{
    /// <summary>An IEEE 754 half-precision value: 1 of sign, 5 of exponent, 10 of fraction.</summary>
    public struct Float16 : IComparable, IComparable<Float16>, IEquatable<Float16>
    {
        private const int SignBit = 0x8000;
        private const int ExponentBits = 0x7C00;

        /// <summary>The bits.</summary>
        public readonly ushort value;

        /// <summary>Creates a value from its bits.</summary>
        /// <param name="v">The bits.</param>
        public Float16(ushort v)
        {
            value = v;
        }

        /// <summary>The largest finite value, 65504.</summary>
        public static Float16 MaxValue => new Float16(0x7BFF);

        /// <summary>The smallest finite value, -65504.</summary>
        public static Float16 MinValue => new Float16(0xFBFF);

        /// <summary>The smallest positive value, 2 to the power of -24.</summary>
        public static Float16 Epsilon => new Float16(0x0001);

        /// <summary>Infinity.</summary>
        public static Float16 PositiveInfinity => new Float16(0x7C00);

        /// <summary>Negative infinity.</summary>
        public static Float16 NegativeInfinity => new Float16(0xFC00);

        /// <summary>Not a number.</summary>
        public static Float16 NaN => new Float16(0xFE00);

        /// <summary>Zero.</summary>
        public static Float16 Zero => new Float16(0);

        /// <summary>One.</summary>
        public static Float16 One => new Float16(0x3C00);

        /// <summary>Zero with a sign.</summary>
        public static Float16 NegativeZero => new Float16(0x8000);

        /// <summary>The number nearest to pi.</summary>
        public static Float16 Pi => new Float16(0x4248);

        /// <summary>The nearest value to a float; ties round to even, overflow to
        /// infinity.</summary>
        /// <param name="value">The float.</param>
        /// <returns>The value.</returns>
        public static explicit operator Float16(float value)
        {
            uint bits = FloatBits.Of(value);
            uint sign = bits >> 16 & 0x8000;
            uint magnitude = bits & 0x7FFFFFFF;
            if (magnitude > 0x7F800000)
            {
                return new Float16((ushort)(sign | 0x7E00));
            }
            if (magnitude >= 0x47800000)
            {
                return new Float16((ushort)(sign | 0x7C00));
            }
            if (magnitude < 0x38800000)
            {
                // A subnormal counts units of 2 to the power of -24, and so does adding 0.5 to a float, which rounds.
                float counted = (float)(FloatBits.From(magnitude) + 0.5f);
                return new Float16((ushort)(sign | FloatBits.Of(counted) - 0x3F000000));
            }
            uint rounded = magnitude - 0x38000000 + 0x0FFF + (magnitude >> 13 & 1);
            return new Float16((ushort)(sign | rounded >> 13));
        }

        /// <summary>The same value as a float.</summary>
        /// <param name="value">The value.</param>
        /// <returns>The float; the conversion is exact.</returns>
        public static explicit operator float(Float16 value)
        {
            return value.ToFloat();
        }

        /// <summary>Whether two values are equal; NaN is equal to nothing, the zeros are equal.</summary>
        /// <param name="left">The first value.</param>
        /// <param name="right">The second value.</param>
        /// <returns>True if they are.</returns>
        public static bool operator ==(Float16 left, Float16 right)
        {
            return left.ToFloat() == right.ToFloat();
        }

        /// <summary>Whether two values differ.</summary>
        /// <param name="left">The first value.</param>
        /// <param name="right">The second value.</param>
        /// <returns>True if they do.</returns>
        public static bool operator !=(Float16 left, Float16 right)
        {
            return left.ToFloat() != right.ToFloat();
        }

        /// <summary>Whether one value is less than another.</summary>
        /// <param name="left">The first value.</param>
        /// <param name="right">The second value.</param>
        /// <returns>True if it is.</returns>
        public static bool operator <(Float16 left, Float16 right)
        {
            return left.ToFloat() < right.ToFloat();
        }

        /// <summary>Whether one value is greater than another.</summary>
        /// <param name="left">The first value.</param>
        /// <param name="right">The second value.</param>
        /// <returns>True if it is.</returns>
        public static bool operator >(Float16 left, Float16 right)
        {
            return left.ToFloat() > right.ToFloat();
        }

        /// <summary>Whether the left value is less or they are equal.</summary>
        /// <param name="left">The first value.</param>
        /// <param name="right">The second value.</param>
        /// <returns>True if it is; false if one is NaN.</returns>
        public static bool operator <=(Float16 left, Float16 right)
        {
            return left.ToFloat() <= right.ToFloat();
        }

        /// <summary>Whether the left value is greater or they are equal.</summary>
        /// <param name="left">The first value.</param>
        /// <param name="right">The second value.</param>
        /// <returns>True if it is; false if one is NaN.</returns>
        public static bool operator >=(Float16 left, Float16 right)
        {
            return left.ToFloat() >= right.ToFloat();
        }

        /// <summary>The value with its sign changed.</summary>
        /// <param name="value">The value.</param>
        /// <returns>The result; NaN remains NaN.</returns>
        public static Float16 Negate(Float16 value)
        {
            return IsNaN(value) ? value : new Float16((ushort)(value.value ^ SignBit));
        }

        /// <summary>Whether a value is neither infinite nor NaN.</summary>
        /// <param name="value">The value.</param>
        /// <returns>True if it is.</returns>
        public static bool IsFinite(Float16 value)
        {
            return Magnitude(value) < ExponentBits;
        }

        /// <summary>Whether a value is infinite, with either sign.</summary>
        /// <param name="value">The value.</param>
        /// <returns>True if it is.</returns>
        public static bool IsInfinity(Float16 value)
        {
            return Magnitude(value) == ExponentBits;
        }

        /// <summary>Whether a value is positive infinity.</summary>
        /// <param name="value">The value.</param>
        /// <returns>True if it is.</returns>
        public static bool IsPositiveInfinity(Float16 value)
        {
            return value.value == ExponentBits;
        }

        /// <summary>Whether a value is negative infinity.</summary>
        /// <param name="value">The value.</param>
        /// <returns>True if it is.</returns>
        public static bool IsNegativeInfinity(Float16 value)
        {
            return value.value == (SignBit | ExponentBits);
        }

        /// <summary>Whether the sign of a value is set, also of zero and NaN.</summary>
        /// <param name="value">The value.</param>
        /// <returns>True if it is.</returns>
        public static bool IsNegative(Float16 value)
        {
            return (value.value & SignBit) != 0;
        }

        /// <summary>Whether a value is NaN or zero.</summary>
        /// <param name="value">The value.</param>
        /// <returns>True if it is.</returns>
        public static bool IsNaNOrZero(Float16 value)
        {
            return Magnitude(value) == 0 || IsNaN(value);
        }

        /// <summary>Whether a value is finite, and not zero or subnormal.</summary>
        /// <param name="value">The value.</param>
        /// <returns>True if it is.</returns>
        public static bool IsNormal(Float16 value)
        {
            return IsFinite(value) && (value.value & ExponentBits) != 0;
        }

        /// <summary>Whether a value is subnormal: nearer to zero than every normal value, and not zero.</summary>
        /// <param name="value">The value.</param>
        /// <returns>True if it is.</returns>
        public static bool IsSubnormal(Float16 value)
        {
            return Magnitude(value) != 0 && (value.value & ExponentBits) == 0;
        }

        /// <summary>Whether a value is NaN.</summary>
        /// <param name="value">The value.</param>
        /// <returns>True if it is.</returns>
        public static bool IsNaN(Float16 value)
        {
            return (value.value & 0x7FFF) > 0x7C00;
        }

        /// <summary>The same value as a float.</summary>
        /// <returns>The float; the conversion is exact.</returns>
        public float ToFloat()
        {
            uint sign = (uint)(value & 0x8000) << 16;
            uint exponent = (uint)value >> 10 & 0x1F;
            uint fraction = value & 0x3FFu;
            if (exponent == 0)
            {
                float subnormal = fraction * (1.0f / (1 << 24));
                return FloatBits.From(sign | FloatBits.Of(subnormal));
            }
            uint widened = exponent == 0x1F ? 0xFFu : exponent + 112;
            return FloatBits.From(sign | widened << 23 | fraction << 13);
        }

        /// <summary>Orders values as floats.</summary>
        /// <param name="other">The other value.</param>
        /// <returns>Less than 0, 0 or more than 0.</returns>
        public int CompareTo(Float16 other)
        {
            return ToFloat().CompareTo(other.ToFloat());
        }

        /// <summary>Orders values as floats.</summary>
        /// <param name="obj">The other value, or null, which comes first.</param>
        /// <returns>Less than 0, 0 or more than 0.</returns>
        /// <exception cref="ArgumentException">When <paramref name="obj"/> has another type.</exception>
        public int CompareTo(object obj)
        {
            if (obj == null)
            {
                return 1;
            }
            if (!(obj is Float16 other))
            {
                throw new ArgumentException("expected a Float16, found a " + obj.GetType().Name, nameof(obj));
            }
            return CompareTo(other);
        }

        /// <summary>Whether two values are equal as keys: NaN is equal to itself.</summary>
        /// <param name="other">The other value.</param>
        /// <returns>True if they are.</returns>
        public bool Equals(Float16 other)
        {
            return ToFloat().Equals(other.ToFloat());
        }

        /// <summary>Whether an object is an equal value.</summary>
        /// <param name="obj">The object.</param>
        /// <returns>True if it is.</returns>
        public override bool Equals(object obj)
        {
            return obj is Float16 other && Equals(other);
        }

        /// <summary>A hash code; equal values have equal hash codes.</summary>
        /// <returns>The value.</returns>
        public override int GetHashCode()
        {
            return ToFloat().GetHashCode();
        }

        /// <summary>The value as a string.</summary>
        /// <returns>The string, the same in every culture.</returns>
        public override string ToString()
        {
            return ToFloat().ToString(CultureInfo.InvariantCulture);
        }

        private static int Magnitude(Float16 value)
        {
            return value.value & ~SignBit;
        }
    }
}
