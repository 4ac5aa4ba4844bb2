using System;
using System.Collections.Generic;
using Microsoft.ML.OnnxRuntime.Tensors;

namespace Microsoft.ML.OnnxRuntime
{
    public unsafe partial class OrtValue
    {
        /// <summary>Receives an element of a sequence.</summary>
        /// <param name="ortValue">The element, valid during the call.</param>
        /// <param name="index">Index of the element.</param>
        public delegate void SequenceElementVisitor(OrtValue ortValue, int index);

        /// <summary>Receives the keys and the values of a map.</summary>
        /// <param name="keys">The keys, a tensor of rank 1, valid during the call.</param>
        /// <param name="values">The values in the order of the keys, valid during the call.</param>
        public delegate void MapVisitor(OrtValue keys, OrtValue values);

        /// <summary>Creates a sequence of values.</summary>
        /// <param name="ortValues">The values, of one type. They become part of the sequence and are disposed of
        /// with it; the collection is empty afterwards.</param>
        /// <returns>The sequence.</returns>
        /// <exception cref="System.ArgumentNullException">When <paramref name="ortValues"/> or a value is
        /// null.</exception>
        /// <exception cref="OnnxRuntimeException">InvalidArgument when the collection is read-only or empty, or
        /// the values are of different types.</exception>
        public static OrtValue CreateSequence(ICollection<OrtValue> ortValues)
        {
            Arguments.NotNull(ortValues, nameof(ortValues));
            if (ortValues.IsReadOnly)
            {
                throw new OnnxRuntimeException(
                    ErrorCode.InvalidArgument,
                    "CreateSequence: ortValues is read-only, expected a collection that can be emptied");
            }
            var parts = new List<OrtValue>(ortValues);
            OrtValue sequence = Compose(parts, OnnxValueType.ONNX_TYPE_SEQUENCE, nameof(ortValues));
            ortValues.Clear();
            return sequence;
        }

        /// <summary>Creates a map from two tensors.</summary>
        /// <param name="keys">The keys, a tensor of rank 1 of int64 or strings. It becomes part of the map and is
        /// disposed of with it; the variable is null afterwards.</param>
        /// <param name="values">The values in the order of the keys. The tensor becomes part of the map, too; the
        /// variable is null afterwards.</param>
        /// <returns>The map.</returns>
        /// <exception cref="System.ArgumentNullException">When a value is null.</exception>
        /// <exception cref="OnnxRuntimeException">InvalidArgument when the tensors do not make up a
        /// map; NotImplemented when the library has no maps.</exception>
        public static OrtValue CreateMap(ref OrtValue keys, ref OrtValue values)
        {
            var parts = new List<OrtValue>
            {
                Arguments.NotNull(keys, nameof(keys)), Arguments.NotNull(values, nameof(values)),
            };
            OrtValue map = Compose(parts, OnnxValueType.ONNX_TYPE_MAP, nameof(keys));
            keys = null;
            values = null;
            return map;
        }

        /// <summary>Creates a map of numbers.</summary>
        /// <typeparam name="K">Type of the keys.</typeparam>
        /// <typeparam name="V">Type of the values.</typeparam>
        /// <param name="keys">The keys.</param>
        /// <param name="values">The values in the order of the keys.</param>
        /// <returns>The map.</returns>
        /// <exception cref="System.ArgumentException">When there are not as many values as keys.</exception>
        /// <exception cref="OnnxRuntimeException">InvalidArgument when the arrays do not make up a
        /// map; NotImplemented when the library has no maps.</exception>
        public static OrtValue CreateMap<K, V>(K[] keys, V[] values)
            where K : struct
            where V : struct
        {
            CheckPairs(Arguments.NotNull(keys, nameof(keys)).Length, Arguments.NotNull(values, nameof(values)).Length);
            return CreateMap(() => OfArray(keys), () => OfArray(values));
        }

        /// <summary>Creates a map from strings to numbers.</summary>
        /// <typeparam name="V">Type of the values.</typeparam>
        /// <param name="keys">The keys.</param>
        /// <param name="values">The values in the order of the keys.</param>
        /// <returns>The map.</returns>
        /// <exception cref="System.ArgumentException">When there are not as many values as keys.</exception>
        /// <exception cref="OnnxRuntimeException">InvalidArgument when the arrays do not make up a
        /// map; NotImplemented when the library has no maps.</exception>
        public static OrtValue CreateMapWithStringKeys<V>(IReadOnlyCollection<string> keys, V[] values)
            where V : struct
        {
            CheckPairs(Arguments.NotNull(keys, nameof(keys)).Count, Arguments.NotNull(values, nameof(values)).Length);
            return CreateMap(() => OfTexts(keys), () => OfArray(values));
        }

        /// <summary>Creates a map from numbers to strings.</summary>
        /// <typeparam name="K">Type of the keys.</typeparam>
        /// <param name="keys">The keys.</param>
        /// <param name="values">The values in the order of the keys.</param>
        /// <returns>The map.</returns>
        /// <exception cref="System.ArgumentException">When there are not as many values as keys.</exception>
        /// <exception cref="OnnxRuntimeException">InvalidArgument when the arrays do not make up a
        /// map; NotImplemented when the library has no maps.</exception>
        public static OrtValue CreateMapWithStringValues<K>(K[] keys, IReadOnlyCollection<string> values)
            where K : struct
        {
            CheckPairs(Arguments.NotNull(keys, nameof(keys)).Length, Arguments.NotNull(values, nameof(values)).Count);
            return CreateMap(() => OfArray(keys), () => OfTexts(values));
        }

        /// <summary>Number of parts: the elements of a sequence, or 2 for a map.</summary>
        /// <returns>The number.</returns>
        /// <exception cref="OnnxRuntimeException">InvalidArgument for a tensor.</exception>
        /// <exception cref="System.ObjectDisposedException">When the object was disposed of.</exception>
        public int GetValueCount()
        {
            NativeStatus.ThrowOnError(OrtApi.GetValueCount(Live, out UIntPtr count));
            return (int)count;
        }

        /// <summary>A part: an element of a sequence, or the keys (0) or the values (1) of a map.</summary>
        /// <param name="index">Index of the part.</param>
        /// <param name="allocator">Allocates the copy.</param>
        /// <returns>A copy, which the caller disposes of.</returns>
        /// <exception cref="System.ArgumentNullException">When <paramref name="allocator"/> is null.</exception>
        /// <exception cref="OnnxRuntimeException">InvalidArgument for a tensor, and when there is no such
        /// part.</exception>
        /// <exception cref="System.ObjectDisposedException">When the object was disposed of.</exception>
        public OrtValue GetValue(int index, OrtAllocator allocator)
        {
            NativeStatus.ThrowOnError(OrtApi.GetValue(
                Live, index, Arguments.NotNull(allocator, nameof(allocator)).Pointer, out IntPtr part));
            return new OrtValue(part);
        }

        /// <summary>Calls a function with each element of a sequence.</summary>
        /// <param name="visitor">The function.</param>
        /// <param name="allocator">Allocates copies of the elements.</param>
        /// <exception cref="System.ArgumentNullException">When an argument is null.</exception>
        /// <exception cref="OnnxRuntimeException">InvalidArgument when this is not a sequence.</exception>
        /// <exception cref="System.ObjectDisposedException">When the object was disposed of.</exception>
        public void ProcessSequence(SequenceElementVisitor visitor, OrtAllocator allocator)
        {
            Arguments.NotNull(visitor, nameof(visitor));
            Require(OnnxValueType.ONNX_TYPE_SEQUENCE, nameof(ProcessSequence));
            int count = GetValueCount();
            for (int i = 0; i < count; ++i)
            {
                using (OrtValue element = GetValue(i, allocator))
                {
                    visitor(element, i);
                }
            }
        }

        /// <summary>Calls a function with the keys and the values of a map.</summary>
        /// <param name="visitor">The function.</param>
        /// <param name="allocator">Allocates copies of both.</param>
        /// <exception cref="System.ArgumentNullException">When an argument is null.</exception>
        /// <exception cref="OnnxRuntimeException">InvalidArgument when this is not a map.</exception>
        /// <exception cref="System.ObjectDisposedException">When the object was disposed of.</exception>
        public void ProcessMap(MapVisitor visitor, OrtAllocator allocator)
        {
            Arguments.NotNull(visitor, nameof(visitor));
            Require(OnnxValueType.ONNX_TYPE_MAP, nameof(ProcessMap));
            using (OrtValue keys = GetValue(0, allocator))
            using (OrtValue values = GetValue(1, allocator))
            {
                visitor(keys, values);
            }
        }

        private static OrtValue Compose(List<OrtValue> parts, OnnxValueType kind, string name)
        {
            using (var native = new NativeValues(parts, name))
            {
                NativeStatus.ThrowOnError(
                    OrtApi.CreateValue(native.Pointers, (UIntPtr)native.Count, kind, out IntPtr value));
                var made = new OrtValue(value);
                made.parts = parts;
                return made;
            }
        }

        private static OrtValue CreateMap(Func<OrtValue> makeKeys, Func<OrtValue> makeValues)
        {
            OrtValue keys = null, values = null;
            try
            {
                keys = makeKeys();
                values = makeValues();
                return CreateMap(ref keys, ref values);
            }
            finally
            {
                keys?.Dispose();
                values?.Dispose();
            }
        }

        private static OrtValue OfArray<T>(T[] elements)
            where T : struct
        {
            return CreateTensorValueFromMemory(elements, new[] { (long)elements.Length });
        }

        private static OrtValue OfTexts(IReadOnlyCollection<string> texts)
        {
            return CreateFromStringTensor(new DenseTensor<string>(new List<string>(texts).ToArray(), new[] { texts.Count }));
        }

        private static void CheckPairs(int keys, int values)
        {
            Arguments.SameCount(keys, "keys", values, "values");
        }

        private void Require(OnnxValueType expected, string method)
        {
            if (OnnxType != expected)
            {
                throw new OnnxRuntimeException(
                    ErrorCode.InvalidArgument, method + ": the value is of kind " + OnnxType + ", expected " + expected);
            }
        }
    }
}
