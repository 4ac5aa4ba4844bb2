using System;
using System.Collections.Generic;

namespace Microsoft.ML.OnnxRuntime
{
    /// <summary>Named C# tensors as the names and the values of a run.</summary>
    internal sealed class NamedValues : IDisposable
    {
        private readonly DisposableList<OrtValue> values;

        internal NamedValues(IReadOnlyCollection<NamedOnnxValue> named, string name)
        {
            Arguments.NotNull(named, name);
            Names = new List<string>(named.Count);
            values = new DisposableList<OrtValue>(named.Count);
            try
            {
                foreach (NamedOnnxValue value in named)
                {
                    if (value == null)
                    {
                        throw new ArgumentNullException(name + "[" + Names.Count + "]");
                    }
                    Names.Add(value.Name);
                    values.Add(value.CreateOrtValue());
                }
            }
            catch
            {
                values.Dispose();
                throw;
            }
        }

        internal List<string> Names { get; }

        internal IReadOnlyCollection<OrtValue> Values => values;

        public void Dispose()
        {
            values.Dispose();
        }
    }
}
