using System;
using System.Runtime.InteropServices;

namespace Microsoft.ML.OnnxRuntime
{
    /// <summary>Checks and conversions of arguments.</summary>
    internal static class Arguments
    {
        internal static T NotNull<T>(T argument, string name)
            where T : class
        {
            return argument ?? throw new ArgumentNullException(name);
        }

        /// <summary>The object itself; throws if it was disposed of.</summary>
        internal static T NotDisposed<T>(T handle)
            where T : SafeHandle
        {
            if (handle.IsClosed)
            {
                throw new ObjectDisposedException(typeof(T).Name);
            }
            return handle;
        }

        /// <summary>A Boolean as one byte, as in C.</summary>
        internal static byte Byte(bool value)
        {
            return value ? (byte)1 : (byte)0;
        }

        /// <summary>Booleans, one byte each.</summary>
        internal static byte[] Bytes(bool[] values, string name)
        {
            return Array.ConvertAll(NotNull(values, name), Byte);
        }

        /// <summary>A count or an index, which is never negative.</summary>
        internal static UIntPtr Size(long value, string name)
        {
            if (value < 0 || (UIntPtr.Size == 4 && value > uint.MaxValue))
            {
                throw new ArgumentOutOfRangeException(
                    name, value, "expected a number from 0 to " + (UIntPtr.Size == 4 ? uint.MaxValue : long.MaxValue));
            }
            return (UIntPtr)(ulong)value;
        }

        /// <summary>The length of an array; 0 for none.</summary>
        internal static int Length(Array array)
        {
            return array == null ? 0 : array.Length;
        }

        /// <summary>Rejects two lists of different lengths where a call takes one length for both.</summary>
        internal static void SameCount(int count, string name, int otherCount, string otherName)
        {
            if (count != otherCount)
            {
                throw new ArgumentException(
                    otherName + " has " + otherCount + " elements, expected as many as " + name + ", " + count,
                    otherName);
            }
        }
    }
}
