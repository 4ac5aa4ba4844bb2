using System;
using System.Collections.Generic;
using System.Linq;
using Microsoft.ML.OnnxRuntime.Tensors;

namespace Microsoft.ML.OnnxRuntime
{
    /// <summary>A C# tensor, sequence or map with the name of its input or output.</summary>
    public class NamedOnnxValue
    {
        // Makes a value of a map, whose types are known where the pair is created.
        private Func<object, OrtValue> composeMap;

        /// <summary>Creates a pair of name and tensor.</summary>
        /// <param name="name">The name.</param>
        /// <param name="value">The tensor.</param>
        /// <param name="valueType">The kind of the value.</param>
        /// <exception cref="System.ArgumentNullException">When an argument is null.</exception>
        protected NamedOnnxValue(string name, object value, OnnxValueType valueType)
        {
            Name = Arguments.NotNull(name, nameof(name));
            Value = Arguments.NotNull(value, nameof(value));
            ValueType = valueType;
        }

        /// <summary>Creates a pair of name and tensor.</summary>
        /// <param name="name">The name.</param>
        /// <param name="value">The tensor.</param>
        /// <exception cref="System.ArgumentNullException">When an argument is null.</exception>
        protected NamedOnnxValue(string name, object value)
            : this(name, value, OnnxValueType.ONNX_TYPE_TENSOR)
        {
        }

        /// <summary>The kind of the value.</summary>
        public OnnxValueType ValueType { get; }

        /// <summary>Name of the input or output.</summary>
        public string Name { get; set; }

        /// <summary>The value: a Tensor of some element type, the elements of a sequence, or a dictionary.</summary>
        public object Value { get; set; }

        /// <summary>Creates a pair of name and tensor.</summary>
        /// <typeparam name="T">Type of the elements.</typeparam>
        /// <param name="name">The name.</param>
        /// <param name="value">The tensor; it is not copied.</param>
        /// <returns>The pair.</returns>
        /// <exception cref="System.ArgumentNullException">When an argument is null.</exception>
        public static NamedOnnxValue CreateFromTensor<T>(string name, Tensor<T> value)
        {
            return new NamedOnnxValue(name, value, OnnxValueType.ONNX_TYPE_TENSOR);
        }

        /// <summary>Creates a pair of name and sequence.</summary>
        /// <typeparam name="T">Type of the elements: NamedOnnxValue.</typeparam>
        /// <param name="name">The name.</param>
        /// <param name="value">The elements.</param>
        /// <returns>The pair.</returns>
        /// <exception cref="System.ArgumentNullException">When an argument is null.</exception>
        public static NamedOnnxValue CreateFromSequence<T>(string name, IEnumerable<T> value)
        {
            return new NamedOnnxValue(name, value, OnnxValueType.ONNX_TYPE_SEQUENCE);
        }

        /// <summary>Creates a pair of name and map.</summary>
        /// <typeparam name="K">Type of the keys: long or string.</typeparam>
        /// <typeparam name="V">Type of the values: float, double, long or string.</typeparam>
        /// <param name="name">The name.</param>
        /// <param name="value">The map.</param>
        /// <returns>The pair.</returns>
        /// <exception cref="System.ArgumentNullException">When an argument is null.</exception>
        public static NamedOnnxValue CreateFromMap<K, V>(string name, IDictionary<K, V> value)
        {
            return new NamedOnnxValue(name, value, OnnxValueType.ONNX_TYPE_MAP) { composeMap = Compose<K, V> };
        }

        /// <summary>The map.</summary>
        /// <typeparam name="K">Type of the keys.</typeparam>
        /// <typeparam name="V">Type of the values.</typeparam>
        /// <returns>The map itself, not a copy.</returns>
        /// <exception cref="OnnxRuntimeException">InvalidArgument when it is another kind of value.</exception>
        public IDictionary<K, V> AsDictionary<K, V>()
        {
            return Value as IDictionary<K, V> ?? throw new OnnxRuntimeException(
                ErrorCode.InvalidArgument,
                "AsDictionary: the value '" + Name + "' is a " + Describe(Value) + ", expected a map from " +
                typeof(K).Name + " to " + typeof(V).Name);
        }

        /// <summary>The tensor.</summary>
        /// <typeparam name="T">Type of the elements.</typeparam>
        /// <returns>The tensor itself, not a copy.</returns>
        /// <exception cref="OnnxRuntimeException">InvalidArgument when the elements are of another
        /// type.</exception>
        public Tensor<T> AsTensor<T>()
        {
            return Value as Tensor<T> ?? throw new OnnxRuntimeException(
                ErrorCode.InvalidArgument,
                "AsTensor<" + typeof(T).Name + ">: the value '" + Name + "' is a " + Describe(Value) +
                ", expected a Tensor<" + typeof(T).Name + ">");
        }

        /// <summary>The elements in row-major order.</summary>
        /// <typeparam name="T">Type of the elements.</typeparam>
        /// <returns>The elements.</returns>
        /// <exception cref="OnnxRuntimeException">InvalidArgument when the elements are of another
        /// type.</exception>
        public IEnumerable<T> AsEnumerable<T>()
        {
            return Value as IEnumerable<T> ?? throw new OnnxRuntimeException(
                ErrorCode.InvalidArgument,
                "AsEnumerable<" + typeof(T).Name + ">: the value '" + Name + "' is a " + Describe(Value) +
                ", expected one with elements of type " + typeof(T).Name);
        }

        /// <summary>A value over the tensor's buffer.</summary>
        internal OrtValue CreateOrtValue()
        {
            if (Value is IBufferedTensor tensor)
            {
                return tensor.CreateOrtValue();
            }
            if (ValueType == OnnxValueType.ONNX_TYPE_SEQUENCE && Value is IEnumerable<NamedOnnxValue> elements)
            {
                using (var values = new DisposableList<OrtValue>(4))
                {
                    foreach (NamedOnnxValue element in elements)
                    {
                        values.Add(element.CreateOrtValue());
                    }
                    return OrtValue.CreateSequence(values);
                }
            }
            if (composeMap != null)
            {
                return composeMap(Value);
            }
            throw new OnnxRuntimeException(
                ErrorCode.InvalidArgument,
                "the value '" + Name + "' is a " + Describe(Value) +
                ", expected a DenseTensor, a sequence of NamedOnnxValue or a map from CreateFromMap");
        }

        private static OrtValue Compose<K, V>(object map)
        {
            var pairs = (map as IDictionary<K, V>)?.ToList() ?? throw new OnnxRuntimeException(
                ErrorCode.InvalidArgument,
                "the value is a " + Describe(map) + ", expected a map from " + typeof(K).Name + " to " + typeof(V).Name);
            OrtValue keys = null, values = null;
            try
            {
                keys = Column(pairs.ConvertAll(pair => pair.Key));
                values = Column(pairs.ConvertAll(pair => pair.Value));
                return OrtValue.CreateMap(ref keys, ref values);
            }
            finally
            {
                keys?.Dispose();
                values?.Dispose();
            }
        }

        private static OrtValue Column<T>(List<T> elements)
        {
            IBufferedTensor tensor = new DenseTensor<T>(elements.ToArray(), new[] { elements.Count });
            return tensor.CreateOrtValue();
        }

        private static string Describe(object value)
        {
            return value == null ? "null" : value.ToString();
        }
    }
}
