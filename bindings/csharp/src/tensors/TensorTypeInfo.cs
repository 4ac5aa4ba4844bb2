using System;

namespace Microsoft.ML.OnnxRuntime.Tensors
{
    /// <summary>The element type of a C# type.</summary>
    public class TensorTypeInfo
    {
        /// <summary>Creates a description.</summary>
        /// <param name="elementType">The element type.</param>
        /// <param name="typeSize">Size of an element, in bytes.</param>
        public TensorTypeInfo(TensorElementType elementType, int typeSize)
        {
            ElementType = elementType;
            TypeSize = typeSize;
        }

        /// <summary>The element type.</summary>
        public TensorElementType ElementType { get; }

        /// <summary>Size of an element, in bytes.</summary>
        public int TypeSize { get; }

        /// <summary>Whether the elements are strings.</summary>
        public bool IsString => ElementType == TensorElementType.String;
    }

    /// <summary>The C# type of an element type.</summary>
    public class TensorElementTypeInfo
    {
        /// <summary>Creates a description.</summary>
        /// <param name="type">The C# type.</param>
        /// <param name="typeSize">Size of an element, in bytes.</param>
        public TensorElementTypeInfo(Type type, int typeSize)
        {
            TensorType = type;
            TypeSize = typeSize;
        }

        /// <summary>The C# type.</summary>
        public Type TensorType { get; }

        /// <summary>Size of an element, in bytes.</summary>
        public int TypeSize { get; }

        /// <summary>Whether the elements are strings.</summary>
        public bool IsString => TensorType == typeof(string);
    }
}
