namespace Microsoft.ML.OnnxRuntime
{
    /// <summary>The bits of a float.</summary>
    internal static unsafe class FloatBits
    {
        internal static uint Of(float value)
        {
            return *(uint*)&value;
        }

        internal static float From(uint bits)
        {
            return *(float*)&bits;
        }
    }
}
