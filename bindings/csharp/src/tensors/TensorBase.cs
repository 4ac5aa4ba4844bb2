using System;

namespace Microsoft.ML.OnnxRuntime.Tensors
{
    /// <summary>Base class of tensors of all element types.</summary>
    public class TensorBase
    {
        private readonly Type elementType;

        /// <summary>Creates the part of a tensor that knows the type of its elements.</summary>
        /// <param name="primitiveType">Type of the elements.</param>
        protected TensorBase(Type primitiveType)
        {
            elementType = primitiveType;
        }

        /// <summary>The element type of a C# type.</summary>
        /// <param name="type">The C# type.</param>
        /// <returns>The element type and its size; null if no tensor has such elements.</returns>
        public static TensorTypeInfo GetTypeInfo(Type type)
        {
            TensorElementType found = type == typeof(string) ? TensorElementType.String : TensorTypes.Find(type);
            return found == TensorElementType.Undefined ? null : new TensorTypeInfo(found, SizeOf(found));
        }

        /// <summary>The C# type of an element type.</summary>
        /// <param name="elementType">The element type.</param>
        /// <returns>The C# type and its size; null if C# has none.</returns>
        public static TensorElementTypeInfo GetElementTypeInfo(TensorElementType elementType)
        {
            Type type = TensorTypes.TypeOf(elementType);
            return type == null ? null : new TensorElementTypeInfo(type, SizeOf(elementType));
        }

        /// <summary>The element type of this tensor.</summary>
        /// <returns>The element type and its size; null if no value of a session has such elements.</returns>
        public TensorTypeInfo GetTypeInfo()
        {
            return GetTypeInfo(elementType);
        }

        // A string counts as the address of its text, as in onnxruntime.
        private static int SizeOf(TensorElementType type)
        {
            return type == TensorElementType.String ? IntPtr.Size : TensorTypes.Size(type);
        }
    }
}
