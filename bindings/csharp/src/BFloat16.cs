using System;
using System.Globalization;

namespace Microsoft.ML.OnnxRuntime
{
    /// <summary>The upper half of a float: 1 bit of sign, 8 of exponent, 7 of fraction.</summary>
    public struct BFloat16 : IComparable, IComparable<BFloat16>, IEquatable<BFloat16>
    {
        private const int SignBit = 0x8000;
        private const int ExponentBits = 0x7F80;

        /// <summary>The bits.</summary>
        public readonly ushort value;

        /// <summary>Creates a value from its bits.</summary>
        /// <param name="v">The bits.</param>
        public BFloat16(ushort v)
        {
            value = v;
        }

        /// <summary>The largest finite value.</summary>
        public static BFloat16 MaxValue => new BFloat16(0x7F7F);

        /// <summary>The smallest finite value.</summary>
        public static BFloat16 MinValue => new BFloat16(0xFF7F);

        /// <summary>The smallest positive value, 2 to the power of -133.</summary>
        public static BFloat16 Epsilon => new BFloat16(0x0001);

        /// <summary>Infinity.</summary>
        public static BFloat16 PositiveInfinity => new BFloat16(0x7F80);

        /// <summary>Negative infinity.</summary>
        public static BFloat16 NegativeInfinity => new BFloat16(0xFF80);

        /// <summary>Not a number.</summary>
        public static BFloat16 NaN => new BFloat16(0xFFC0);

        /// <summary>Zero.</summary>
        public static BFloat16 Zero => new BFloat16(0);

        /// <summary>One.</summary>
        public static BFloat16 One => new BFloat16(0x3F80);

        /// <summary>Zero with a sign.</summary>
        public static BFloat16 NegativeZero => new BFloat16(0x8000);

        /// <summary>The number nearest to pi.</summary>
        public static BFloat16 Pi => new BFloat16(0x4049);

        /// <summary>The nearest value to a float; ties round to even, overflow to
        /// infinity.</summary>
        /// <param name="value">The float.</param>
        /// <returns>The value.</returns>
        public static explicit operator BFloat16(float value)
        {
            uint bits = FloatBits.Of(value);
            if ((bits & 0x7FFFFFFF) > 0x7F800000)
            {
                return new BFloat16((ushort)(bits >> 16 & 0x8000 | 0x7FC0));
            }
            return new BFloat16((ushort)(bits + 0x7FFF + (bits >> 16 & 1) >> 16));
        }

        /// <summary>The same value as a float.</summary>
        /// <param name="value">The value.</param>
        /// <returns>The float; the conversion is exact.</returns>
        public static explicit operator float(BFloat16 value)
        {
            return value.ToFloat();
        }

        /// <summary>Whether two values are equal; NaN is equal to nothing, the zeros are equal.</summary>
        /// <param name="left">The first value.</param>
        /// <param name="right">The second value.</param>
        /// <returns>True if they are.</returns>
        public static bool operator ==(BFloat16 left, BFloat16 right)
        {
            return left.ToFloat() == right.ToFloat();
        }

        /// <summary>Whether two values differ.</summary>
        /// <param name="left">The first value.</param>
        /// <param name="right">The second value.</param>
        /// <returns>True if they do.</returns>
        public static bool operator !=(BFloat16 left, BFloat16 right)
        {
            return left.ToFloat() != right.ToFloat();
        }

        /// <summary>Whether one value is less than another.</summary>
        /// <param name="left">The first value.</param>
        /// <param name="right">The second value.</param>
        /// <returns>True if it is.</returns>
        public static bool operator <(BFloat16 left, BFloat16 right)
        {
            return left.ToFloat() < right.ToFloat();
        }

        /// <summary>Whether one value is greater than another.</summary>
        /// <param name="left">The first value.</param>
        /// <param name="right">The second value.</param>
        /// <returns>True if it is.</returns>
        public static bool operator >(BFloat16 left, BFloat16 right)
        {
            return left.ToFloat() > right.ToFloat();
        }

        /// <summary>Whether the left value is less or they are equal.</summary>
        /// <param name="left">The first value.</param>
        /// <param name="right">The second value.</param>
        /// <returns>True if it is; false if one is NaN.</returns>
        public static bool operator <=(BFloat16 left, BFloat16 right)
        {
            return left.ToFloat() <= right.ToFloat();
        }

        /// <summary>Whether the left value is greater or they are equal.</summary>
        /// <param name="left">The first value.</param>
        /// <param name="right">The second value.</param>
        /// <returns>True if it is; false if one is NaN.</returns>
        public static bool operator >=(BFloat16 left, BFloat16 right)
        {
            return left.ToFloat() >= right.ToFloat();
        }

        /// <summary>The value with its sign changed.</summary>
        /// <param name="value">The value.</param>
        /// <returns>The result; NaN remains NaN.</returns>
        public static BFloat16 Negate(BFloat16 value)
        {
            return IsNaN(value) ? value : new BFloat16((ushort)(value.value ^ SignBit));
        }

        /// <summary>Whether a value is neither infinite nor NaN.</summary>
        /// <param name="value">The value.</param>
        /// <returns>True if it is.</returns>
        public static bool IsFinite(BFloat16 value)
        {
            return Magnitude(value) < ExponentBits;
        }

        /// <summary>Whether a value is infinite, with either sign.</summary>
        /// <param name="value">The value.</param>
        /// <returns>True if it is.</returns>
        public static bool IsInfinity(BFloat16 value)
        {
            return Magnitude(value) == ExponentBits;
        }

        /// <summary>Whether a value is positive infinity.</summary>
        /// <param name="value">The value.</param>
        /// <returns>True if it is.</returns>
        public static bool IsPositiveInfinity(BFloat16 value)
        {
            return value.value == ExponentBits;
        }

        /// <summary>Whether a value is negative infinity.</summary>
        /// <param name="value">The value.</param>
        /// <returns>True if it is.</returns>
        public static bool IsNegativeInfinity(BFloat16 value)
        {
            return value.value == (SignBit | ExponentBits);
        }

        /// <summary>Whether the sign of a value is set, also of zero and NaN.</summary>
        /// <param name="value">The value.</param>
        /// <returns>True if it is.</returns>
        public static bool IsNegative(BFloat16 value)
        {
            return (value.value & SignBit) != 0;
        }

        /// <summary>Whether a value is NaN or zero.</summary>
        /// <param name="value">The value.</param>
        /// <returns>True if it is.</returns>
        public static bool IsNaNOrZero(BFloat16 value)
        {
            return Magnitude(value) == 0 || IsNaN(value);
        }

        /// <summary>Whether a value is finite, and not zero or subnormal.</summary>
        /// <param name="value">The value.</param>
        /// <returns>True if it is.</returns>
        public static bool IsNormal(BFloat16 value)
        {
            return IsFinite(value) && (value.value & ExponentBits) != 0;
        }

        /// <summary>Whether a value is subnormal: nearer to zero than every normal value, and not zero.</summary>
        /// <param name="value">The value.</param>
        /// <returns>True if it is.</returns>
        public static bool IsSubnormal(BFloat16 value)
        {
            return Magnitude(value) != 0 && (value.value & ExponentBits) == 0;
        }

        /// <summary>Whether a value is NaN.</summary>
        /// <param name="value">The value.</param>
        /// <returns>True if it is.</returns>
        public static bool IsNaN(BFloat16 value)
        {
            return (value.value & 0x7FFF) > 0x7F80;
        }

        /// <summary>The same value as a float.</summary>
        /// <returns>The float; the conversion is exact.</returns>
        public float ToFloat()
        {
            return FloatBits.From((uint)value << 16);
        }

        /// <summary>Orders values as floats.</summary>
        /// <param name="other">The other value.</param>
        /// <returns>Less than 0, 0 or more than 0.</returns>
        public int CompareTo(BFloat16 other)
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
            if (!(obj is BFloat16 other))
            {
                throw new ArgumentException("expected a BFloat16, found a " + obj.GetType().Name, nameof(obj));
            }
            return CompareTo(other);
        }

        /// <summary>Whether two values are equal as keys: NaN is equal to itself.</summary>
        /// <param name="other">The other value.</param>
        /// <returns>True if they are.</returns>
        public bool Equals(BFloat16 other)
        {
            return ToFloat().Equals(other.ToFloat());
        }

        /// <summary>Whether an object is an equal value.</summary>
        /// <param name="obj">The object.</param>
        /// <returns>True if it is.</returns>
        public override bool Equals(object obj)
        {
            return obj is BFloat16 other && Equals(other);
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

        private static int Magnitude(BFloat16 value)
        {
            return value.value & ~SignBit;
        }
    }
}
