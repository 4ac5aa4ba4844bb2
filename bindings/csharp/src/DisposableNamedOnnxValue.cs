using System;
using Microsoft.ML.OnnxRuntime.Tensors;

namespace Microsoft.ML.OnnxRuntime
{
    /// <summary>An output of a step with its name. Its tensor shares the value's memory.</summary>
    /// <remarks>After the value was disposed of, reading its tensor throws <see
    /// cref="ObjectDisposedException"/>.</remarks>
    public class DisposableNamedOnnxValue : NamedOnnxValue, IDisposable
    {
        private readonly OrtValue owned;

        private DisposableNamedOnnxValue(string name, OrtValue owned)
            : base(name, TensorTypes.View(owned), owned.OnnxType)
        {
            this.owned = owned;
            ElementType = owned.IsTensor ? owned.Info.ElementDataType : TensorElementType.Undefined;
        }

        /// <summary>Type of the elements of a tensor; Undefined for a sequence.</summary>
        public TensorElementType ElementType { get; }

        /// <summary>Frees the value. Calling it again has no effect.</summary>
        public void Dispose()
        {
            Dispose(true);
            GC.SuppressFinalize(this);
        }

        /// <summary>Frees the values that the object owns.</summary>
        /// <param name="disposing">True when called by Dispose(), false when called by a finalizer.</param>
        protected virtual void Dispose(bool disposing)
        {
            if (disposing)
            {
                owned.Dispose();
                (Value as IDisposable)?.Dispose();
            }
        }

        /// <summary>Takes ownership of a value.</summary>
        internal static DisposableNamedOnnxValue CreateFromOrtValue(string name, OrtValue value)
        {
            return new DisposableNamedOnnxValue(name, value);
        }
    }
}
